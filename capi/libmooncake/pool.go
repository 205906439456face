//go:build cgo

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store"
	"github.com/kvcache-ai/mooncake-go/weight"
)

// pool is a store that is open in this process, under a name. Its clients and weight handles share it; the last one to
// leave closes it.
//
// Lock order: pool.mu, then pools.
type pool struct {
	name string
	mu   struct { // held while the store opens and closes
		sync.Mutex
		s       *store.Store // nil: closed
		asked   store.Options
		users   int
		weights map[string]*weights // by tenant
	}
	live     atomic.Pointer[store.Store] // mu.s, for who can't wait for mu
	interest int                         // callers that hold or wait for it; guarded by pools
}

var pools struct {
	sync.Mutex
	open map[string]*pool
}

// poolRequest says which pool a client wants.
type poolRequest struct {
	name  string
	opts  store.Options
	slots int  // Dir is shared by processes: take one of so many directories below it
	join  bool // take an open pool whatever its options are
	open  bool // only if it is open
}

// enterPool opens a pool or joins it. leave must follow.
func enterPool(q poolRequest) (*pool, *store.Store, error) {
	pools.Lock()
	p := pools.open[q.name]
	if p == nil {
		p = &pool{name: q.name}
		if pools.open == nil {
			pools.open = make(map[string]*pool)
		}
		pools.open[q.name] = p
	}
	p.interest++
	pools.Unlock()

	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.openLocked(q); err != nil {
		p.forget()
		return nil, nil, err
	}
	p.mu.users++
	return p, p.mu.s, nil
}

func (p *pool) forget() {
	pools.Lock()
	defer pools.Unlock()
	if p.interest--; p.interest == 0 {
		delete(pools.open, p.name)
	}
}

func (p *pool) openLocked(q poolRequest) (err error) {
	if p.mu.s != nil {
		if q.join {
			return nil
		}
		return differs(p.name, p.mu.asked, q.opts)
	}
	if q.open {
		return store.ErrClosed
	}
	p.mu.s, err = openSlot(q)
	p.mu.asked = q.opts
	p.live.Store(p.mu.s)
	return err
}

// differs says which option of a client that joins is neither the default nor the pool's.
func differs(name string, have, want store.Options) error {
	h, w, full := reflect.ValueOf(have.WithDefaults()), reflect.ValueOf(want), reflect.ValueOf(want.WithDefaults())
	for i := range w.NumField() {
		if w.Field(i).IsZero() || w.Field(i).Kind() == reflect.Func {
			continue
		}
		if !full.Field(i).Equal(h.Field(i)) {
			return errors.WithMessagef(store.ErrInvalidParams, "the pool %q is open with %s %v, not %v", name, optionNames[w.Type().Field(i).Name],
				h.Field(i), full.Field(i))
		}
	}
	return nil
}

// openSlot opens the store, in the first directory that no other process has if there are several.
func openSlot(q poolRequest) (*store.Store, error) {
	if q.slots == 0 || q.opts.Dir == "" {
		return store.Open(always, q.opts)
	}
	opts := q.opts
	for slot := range q.slots {
		opts.Dir = filepath.Join(q.opts.Dir, fmt.Sprintf("slot-%d", slot))
		s, err := store.Open(always, opts)
		if !errors.Is(err, store.ErrLocked) {
			return s, err
		}
	}
	return nil, errors.WithMessagef(store.ErrLocked, "all %d slots of %q are in use", q.slots, q.opts.Dir)
}

// leave gives the pool up. The last to leave closes the store.
func (p *pool) leave() error {
	defer p.forget()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.users--; p.mu.users > 0 {
		return nil
	}
	s := p.mu.s
	p.mu.s = nil
	p.live.Store(nil)
	return s.Close()
}

// failPools makes every open store refuse what comes: something that they all may have to do with has gone wrong.
func failPools(err error) {
	pools.Lock()
	defer pools.Unlock()
	for _, p := range pools.open {
		if s := p.live.Load(); s != nil {
			s.Fail(err)
		}
	}
}

// weights is the one Manager of a pool and tenant.
type weights struct {
	*weight.Manager
	asked weight.Options
	users int
}

// enterWeights opens the revisions of a tenant or joins who has them open. s is the tenant's store; leaveWeights must
// follow.
func (p *pool) enterWeights(ctx context.Context, s *store.Store, tenant string, opts weight.Options) (*weights, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.s == nil {
		return nil, store.ErrClosed
	}
	w := p.mu.weights[tenant]
	if w == nil {
		m, err := weight.Open(ctx, s, opts)
		if err != nil {
			return nil, err
		}
		w = &weights{Manager: m, asked: opts}
		if p.mu.weights == nil {
			p.mu.weights = make(map[string]*weights)
		}
		p.mu.weights[tenant] = w
	} else if opts.LoadDir != "" && opts.LoadDir != w.asked.LoadDir ||
		opts.UnfinishedTTL != 0 && opts.UnfinishedTTL != w.asked.UnfinishedTTL {
		return nil, errors.WithMessagef(store.ErrInvalidParams, "the revisions of tenant %q are open with other options", tenant)
	}
	w.users++
	p.mu.users++
	pools.Lock()
	p.interest++
	pools.Unlock()
	return w, nil
}

// leaveWeights gives them up, and the pool with them.
func (p *pool) leaveWeights(tenant string, w *weights) error {
	p.mu.Lock()
	var err error
	if w.users--; w.users == 0 {
		delete(p.mu.weights, tenant)
		err = w.Manager.Close()
	}
	p.mu.Unlock()
	if err2 := p.leave(); err == nil {
		err = err2
	}
	return err
}

// defaultPool is the name of the pool that clients share which name none.
const defaultPool = "embedded"

// poolOfDir is the pool of clients that name none: that of their directory, so that who wants one store does not get
// another that happens to be open.
func poolOfDir(dir string) (string, error) {
	if dir == "" {
		return defaultPool, nil
	}
	dir, err := filepath.Abs(dir)
	return "dir:" + dir, err
}

// optionNames are those of store.Options as they are in mooncake.h.
var optionNames = map[string]string{"Dir": "dir", "MemoryBytes": "memory_bytes", "SSDBytes": "ssd_bytes", "ShmDir": "shm_dir",
	"VolatileMemory": "volatile_memory", "LeaseTTL": "lease_ttl_ms", "HighWatermark": "high_watermark",
	"EvictionRatio": "eviction_ratio", "FileBytes": "file_bytes", "Offload": "offload", "PromoteAfter": "promote_after",
	"PutTimeout": "put_timeout_ms"}

// renamed is an error of opening a store in the terms of who called.
type renamed struct{ error }

func (r renamed) Unwrap() error { return r.error }

func (r renamed) Error() string {
	return goOption.ReplaceAllStringFunc(r.error.Error(), func(s string) string {
		if name, ok := optionNames[strings.TrimPrefix(s, "Options.")]; ok {
			return name
		}
		return s
	})
}

var goOption = regexp.MustCompile(`\bOptions\.[A-Z][A-Za-z]+`)

// poolOfAddress is the pool that the address of a master stands for, or an error for one that is an address.
func poolOfAddress(address string, forced bool) (string, error) {
	name, named := strings.CutPrefix(address, defaultPool+":")
	switch {
	case address == "" || address == defaultPool:
		return defaultPool, nil
	case named && name != "":
		return name, nil
	case forced:
		return address, nil
	}
	return "", errors.WithMessagef(store.ErrNotSupported, "can't join a cluster at %.256q: this version opens stores in this "+
		"process only; use the address \"embedded\", or set MOONCAKE_EMBEDDED=1", address)
}
