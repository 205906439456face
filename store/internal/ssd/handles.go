package ssd

import (
	"container/list"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// maxIdleFiles bounds the descriptors that no operation uses: a sixteenth of RLIMIT_NOFILE, 128 at most.
var maxIdleFiles = sync.OnceValue(func() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 8
	}
	return int(min(max(r.Cur/16, 8), 128))
})

// handle is an open file shared by operations.
type handle struct {
	File
	id   uint32
	open sync.Once
	err  error

	refs    int           // guarded by handles.mu, as are
	idle    *list.Element // set while refs is 0
	dropped bool          // close when refs is 0
}

// handles is a bounded cache of open files by id; ids are never reused.
type handles struct {
	openFile func(id uint32) (File, error)

	mu struct {
		sync.Mutex
		byID map[uint32]*handle
		idle list.List // of *handle, the longest idle in front
	}
}

// get opens file id or shares it; release must follow unless an error is returned.
func (hs *handles) get(id uint32) (*handle, error) {
	hs.mu.Lock()
	h := hs.mu.byID[id]
	if h == nil {
		h = &handle{id: id}
		hs.mu.byID[id] = h
	}
	hs.refLocked(h)
	hs.mu.Unlock()

	h.open.Do(func() { h.File, h.err = hs.openFile(id) })
	if h.err != nil {
		hs.forget(id, h)
		hs.release(h)
		return nil, h.err
	}
	return h, nil
}

// add shares f, which has just been created, as file id. The caller releases it.
func (hs *handles) add(id uint32, f File) *handle {
	h := &handle{File: f, id: id, refs: 1}
	h.open.Do(func() {})
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.mu.byID[id] = h
	return h
}

// ref takes another reference to h, which the caller knows to be in use.
func (hs *handles) ref(h *handle) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.refLocked(h)
}

func (hs *handles) refLocked(h *handle) {
	h.refs++
	if h.idle != nil {
		hs.mu.idle.Remove(h.idle)
		h.idle = nil
	}
}

func (hs *handles) release(h *handle) {
	var closing *handle
	hs.mu.Lock()
	h.refs--
	switch {
	case h.refs > 0:
	case h.dropped:
		closing = h
	default:
		h.idle = hs.mu.idle.PushBack(h)
		if hs.mu.idle.Len() > maxIdleFiles() {
			closing = hs.mu.idle.Remove(hs.mu.idle.Front()).(*handle)
			closing.idle = nil
			delete(hs.mu.byID, closing.id)
		}
	}
	hs.mu.Unlock()
	closing.close()
}

// drop closes file id after its last use.
func (hs *handles) drop(id uint32) { hs.forget(id, nil) }

// forget drops file id if it is only, or only is nil.
func (hs *handles) forget(id uint32, only *handle) {
	var closing *handle
	hs.mu.Lock()
	if h := hs.mu.byID[id]; h != nil && (only == nil || h == only) {
		delete(hs.mu.byID, id)
		h.dropped = true
		if h.idle != nil {
			hs.mu.idle.Remove(h.idle)
			h.idle = nil
			closing = h
		}
	}
	hs.mu.Unlock()
	closing.close()
}

// close closes the descriptor. What was written was written with direct I/O or synced, so an error says nothing new.
func (h *handle) close() {
	if h != nil && h.File != nil {
		_ = h.File.Close()
	}
}

// closeAll closes every file. No operation may be running.
func (hs *handles) closeAll() {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for id, h := range hs.mu.byID {
		h.close()
		delete(hs.mu.byID, id)
	}
	hs.mu.idle.Init()
}

const (
	containerSuffix = ".log"
	ownSuffix       = ".obj"
	tierName        = "TIER"
	tierTemp        = "TIER.tmp"
)

// openContainer opens a container for reading and punching.
func (t *Tier) openContainer(id uint32) (File, error) {
	return t.fs.OpenFile(t.path(containerName(id)), os.O_RDWR, 0)
}

// openOwn opens an own data file, which is never written again.
func (t *Tier) openOwn(id uint32) (File, error) {
	return t.fs.OpenFile(t.OwnPath(id), os.O_RDONLY, 0)
}
