package store

import (
	"runtime/debug"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/master"
)

// A memory file of its own whose path was handed out can be cut short by who may write it, root above all. Reading
// what is mapped of it is then a SIGBUS, which would end the process, or zeros that nobody put. So its stamp is looked at
// before each read, and a fault during one is an error.

// untouched is ErrTampered when others know the path of an object's memory file and it is not as it was.
func (c *core) untouched(o *master.Object) error {
	if o.Flags&master.FlagOwnMemory == 0 {
		return nil
	}
	file := c.own.get(uint64(o.Extents()[0].Off))
	if !file.HandedOut() {
		return nil
	}
	is, err := c.stampOf(file)
	if err != nil {
		return errors.WithMessage(ErrTampered, err.Error())
	}
	known, ok := c.stamps.get(memoryStamp(file.ID()))
	if !ok { // an earlier process handed it out, and nobody has verified it here
		known = fileID{o.Size, is.mtimeNs}
	}
	if is != known {
		return changed(filePath(file), known, is)
	}
	return nil
}

// guarded runs fn, which reads the object's memory in pieces.
func guarded(o *master.Object, pieces [][]byte, fn func() error) (err error) {
	if o.Flags&master.FlagOwnMemory == 0 {
		return fn()
	}
	file := pieces[0]
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // of this goroutine
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		fault, ok := p.(interface{ Addr() uintptr })
		start := address(file) // a fault elsewhere is somebody else's bug
		if !ok || fault.Addr() < start || fault.Addr()-start >= uintptr(len(file)) {
			panic(p)
		}
		err = errors.WithMessagef(ErrTampered, "its file was cut short before byte %d", fault.Addr()-start)
	}()
	return fn()
}
