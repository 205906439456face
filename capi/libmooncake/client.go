package main

// #include "guard.h"
import "C"

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store"
)

// client is what a mooncake_store_t stands for: a seat in a pool, once it is set up.
type client struct {
	handle uintptr
	mu     sync.Mutex // held while it is set up and closed
	gone   bool       // destroyed; guarded by mu
	seat   atomic.Pointer[seat]
}

// seat is a client's connection to a pool.
type seat struct {
	*store.Store // as the client's tenant sees it
	pool         *pool
	tenant       string
	hostname     string
	buffers      registered
	sessions     sessions
}

// seatOf finds a client that is set up.
func seatOf(h C.uintptr_t) (*seat, error) {
	c := clients.get(uintptr(h))
	if c == nil {
		return nil, errHandle
	}
	s := c.seat.Load()
	if s == nil {
		return nil, errNotSetUp
	}
	return s, nil
}

// samePool asks for the pool of a client. If its last client has just been closed there is none: it must not be opened
// again, with no options.
func (s *seat) samePool() poolRequest { return poolRequest{name: s.pool.name, join: true, open: true} }

// connect gives a client its seat.
func (c *client) connect(q poolRequest, tenant, hostname string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return errHandle
	}
	if c.seat.Load() != nil {
		return errors.WithMessage(store.ErrInvalidParams, "the client is set up already")
	}
	p, whole, err := enterPool(q)
	if err != nil {
		return err
	}
	s, err := whole.Tenant(tenant)
	if err != nil {
		_ = p.leave()
		return err
	}
	c.seat.Store(&seat{Store: s, pool: p, tenant: tenant, hostname: withPort(hostname)})
	return nil
}

// close gives the seat up. A client that has none is closed already.
func (c *client) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closeLocked()
}

// destroy closes a client for good: a setup that runs at the same time comes before it or fails.
func (c *client) destroy() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	return c.closeLocked()
}

func (c *client) closeLocked() error {
	s := c.seat.Swap(nil)
	if s == nil {
		return nil
	}
	s.sessions.end()
	return s.pool.leave()
}

var portTurn atomic.Uint32

// withPort gives a host name without a port one. Nothing listens there while the store is embedded: the name only has to
// tell the clients of a host apart.
func withPort(host string) string {
	const first, count = 12300, 2000
	if host == "" {
		host = "localhost"
	}
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		return host
	}
	return fmt.Sprintf("%s:%d", host, first+(uint32(os.Getpid())+portTurn.Add(1)-1)%count)
}

// registered is the memory that a client said it will use. An embedded store needs no such thing and only keeps book, for
// calls whose destinations must lie in it.
type registered struct {
	sync.Mutex
	ranges []memoryRange // by base; they do not overlap
}

type memoryRange struct{ base, end uintptr }

// maxRegistered bounds the buffers of one client.
const maxRegistered = 1 << 20

// add registers [base, base+size). The same range again is no error and changes nothing; any other overlap is refused, as
// the C++ store does, so that the first registration keeps its size and unregister has one meaning.
func (r *registered) add(base, size uintptr) error {
	r.Lock()
	defer r.Unlock()
	added := memoryRange{base, base + size}
	i, _ := r.find(base)
	overlaps := func(m memoryRange) bool { return m.base < added.end && added.base < m.end }
	switch {
	case i < len(r.ranges) && r.ranges[i] == added:
		return nil
	case i < len(r.ranges) && overlaps(r.ranges[i]), i > 0 && overlaps(r.ranges[i-1]):
		return errors.WithMessagef(store.ErrInvalidParams, "register buffer: %#x with size %d overlaps a registered one", base, size)
	case len(r.ranges) >= maxRegistered:
		return errors.WithMessagef(store.ErrInvalidParams, "register buffer: there are %d already", maxRegistered)
	}
	r.ranges = slices.Insert(r.ranges, i, added)
	return nil
}

func (r *registered) remove(base uintptr) error {
	r.Lock()
	defer r.Unlock()
	i, ok := r.find(base)
	if !ok {
		return errors.WithMessagef(store.ErrInvalidParams, "unregister buffer: none is registered at %#x", base)
	}
	r.ranges = slices.Delete(r.ranges, i, i+1)
	return nil
}

// find is where the range that begins at base is, or belongs.
func (r *registered) find(base uintptr) (int, bool) {
	return slices.BinarySearchFunc(r.ranges, base, func(m memoryRange, base uintptr) int { return cmp.Compare(m.base, base) })
}
