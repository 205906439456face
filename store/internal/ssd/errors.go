package ssd

import (
	"syscall"

	"github.com/pkg/errors"
)

// What is stored does not read back.
var (
	// ErrCorrupt means that bytes were read and are not the ones that were written.
	ErrCorrupt = errors.New("ssd: checksum mismatch")
	// ErrTruncated means that a file ends before the bytes asked for.
	ErrTruncated = errors.New("ssd: file is truncated")
	// ErrNewerFormat means that a newer version of this package wrote the file. Nothing has been changed.
	ErrNewerFormat = errors.New("ssd: format is newer than this version reads")
	// ErrForeign means that the directory or file belongs to another store. Nothing has been changed.
	ErrForeign = errors.New("ssd: belongs to another store")
)

// What was asked for cannot be done.
var (
	// ErrNoSpace means that the file system or the quota is full.
	ErrNoSpace = errors.New("ssd: no space")
	// ErrInvalid means that an argument contradicts itself or is past a limit.
	ErrInvalid = errors.New("ssd: invalid argument")
	// ErrTooManyWriters means that Options.OwnWriters data files are being written already.
	ErrTooManyWriters = errors.New("ssd: too many open writers")
	// ErrClosed means that the tier has been closed.
	ErrClosed = errors.New("ssd: closed")
)

// ioError wraps an error of the file layer once, as ErrNoSpace where that is what it means.
func ioError(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return errors.Wrapf(errors.Wrap(ErrNoSpace, err.Error()), format, args...)
	}
	return errors.Wrapf(err, format, args...)
}
