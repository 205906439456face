package store

import (
	"context"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
	"github.com/kvcache-ai/mooncake-go/store/internal/master"
)

// fileError gives what a memory file of its own can fail with its place among the store's errors: ErrBusy when too many
// are in use at once, ErrMemoryLimit for a limit of the machine, ErrTampered when it is not the file that was made.
func fileError(err error) error {
	switch {
	case errors.Is(err, arena.ErrTooManyFiles):
		return errors.WithMessage(ErrBusy, err.Error())
	case errors.Is(err, arena.ErrCorrupt):
		return errors.WithMessage(ErrTampered, err.Error())
	}
	return memoryError(err)
}

// errMappings ends a copy to the SSD tier whose memory file can't be mapped now.
var errMappings = errors.WithMessage(ErrBusy, "copy to the SSD tier")

// maxOffloadFiles bounds the memory files that one copy to the SSD tier pins.
const maxOffloadFiles = 256

// addNext is add. It writes what was added before where that has too many files mapped.
func (o *offload) addNext(ctx context.Context, c *core, ref master.Ref, gen uint64) error {
	if o.files >= maxOffloadFiles {
		if err := o.write(ctx, c); err != nil {
			return err
		}
	}
	err := o.add(c, ref, gen)
	if !errors.Is(err, errMappings) || o.files == 0 {
		return err
	}
	if err := o.write(ctx, c); err != nil {
		return err
	}
	return o.add(c, ref, gen)
}

// pin keeps the memory file of an object mapped, if it lives in one: pieces may be used until unpinFile. It returns nil
// for an object without such a file. The caller has pinned the object itself.
func (c *core) pin(o *master.Object) (*arena.File, error) {
	if !o.InMemory() || o.Flags&master.FlagOwnMemory == 0 {
		return nil, nil
	}
	file := c.own.get(uint64(o.Extents()[0].Off))
	if _, err := file.Pin(); err != nil {
		return nil, fileError(err)
	}
	return file, nil
}

func unpinFile(file *arena.File) {
	if file != nil {
		file.Unpin()
	}
}
