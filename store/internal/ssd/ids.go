package ssd

import (
	"io/fs"
	"math"
	"os"

	"github.com/pkg/errors"
)

// idBatch is how many ids one rewrite of TIER reserves. A restart skips what is left of them.
const idBatch = 1024

// loadIDs finds the next file id: past what TIER reserved, what lies in the directory and Options.NextFile. It checks
// that the directory is ours and readable before anything is changed.
func (t *Tier) loadIDs() error {
	next := max(t.opts.NextFile, 1)
	ceiling, err := t.readTier()
	if t.opts.Repair && (errors.Is(err, ErrCorrupt) || errors.Is(err, ErrTruncated)) {
		// Ids of files that are gone may still be named somewhere: stay clear of them.
		ceiling, err = 0, nil
		next += 1 << 20
	}
	if err != nil {
		return err
	}
	next = max(next, ceiling)
	names, err := t.fs.ReadDir(t.dir)
	if err != nil {
		return ioError(err, "list")
	}
	for _, name := range names {
		if id, _, ok := parseName(name); ok && id >= next {
			if id == math.MaxUint32 {
				return errors.Wrapf(ErrInvalid, "no file id is left after %s", name)
			}
			next = id + 1
		}
	}
	t.mu.nextFile, t.mu.ceiling, t.firstFile = next, next, next
	if ceiling == 0 {
		return t.writeTier(next)
	}
	return nil
}

// readTier returns the ceiling in TIER, 0 if there is none.
func (t *Tier) readTier() (uint32, error) {
	f, err := t.fs.OpenFile(t.path(tierName), os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, ioError(err, "open %s", tierName)
	}
	b, err := t.readBlock(f, magicTier)
	_ = f.Close()
	if err != nil {
		return 0, errors.WithMessage(err, tierName)
	}
	return max(b.id, 1), nil
}

// readBlock reads and verifies the first block of f.
func (t *Tier) readBlock(f File, magic uint32) (block, error) {
	buf := t.read.take()
	defer t.read.put(buf)
	if err := readFull(f, buf[:BlockBytes], 0, BlockBytes); err != nil {
		return block{}, err
	}
	b, err := parseBlock(buf[:BlockBytes], magic)
	if err == nil && b.storeID != t.opts.StoreID {
		err = errors.Wrapf(ErrForeign, "store id %x, ours is %x", b.storeID, t.opts.StoreID)
	}
	return b, err
}

// writeTier replaces TIER durably.
func (t *Tier) writeTier(ceiling uint32) error {
	buf := t.read.take()
	defer t.read.put(buf)
	encodeBlock(buf[:BlockBytes], block{magic: magicTier, storeID: t.opts.StoreID, id: ceiling})
	f, err := t.fs.OpenFile(t.path(tierTemp), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return ioError(err, "create %s", tierTemp)
	}
	_, err = f.WriteAt(buf[:BlockBytes], 0)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = t.fs.Rename(t.path(tierTemp), t.path(tierName))
	}
	if err == nil {
		err = t.fs.SyncDir(t.dir)
	}
	return ioError(err, "write %s", tierName)
}

// newID gives out an id that is reserved on disk.
func (t *Tier) newID() (uint32, error) {
	t.ids <- struct{}{}
	defer func() { <-t.ids }()
	t.mu.Lock()
	next, ceiling := t.mu.nextFile, t.mu.ceiling
	t.mu.Unlock()
	if next == ceiling {
		if next >= math.MaxUint32-idBatch {
			return 0, errors.Wrapf(ErrInvalid, "all %d file ids are used", next)
		}
		ceiling = next + idBatch
		if err := t.writeTier(ceiling); err != nil {
			return 0, err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.nextFile, t.mu.ceiling = next+1, ceiling
	return next, nil
}
