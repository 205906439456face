// Package catalogtest has an in-memory catalog.Catalog for tests of the layers above, which can crash and fail, and
// the tests that every implementation passes.
package catalogtest

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/pkg/errors"
)

// Op names the method that a Fault hits.
type Op int

const (
	Apply Op = iota
	Scan
	Get
	Meta
	Close
	Open
)

// Fault makes one call fail.
type Fault struct {
	Op      Op
	After   int   // number of calls of Op, from Inject on, that still succeed
	Err     error // what the call returns
	Applied bool  // Apply: the batch is written all the same, as when only the report was lost
}

// Disk stands for a catalogue's directory: Open gives the Catalog on it, one at a time. Batches that were applied
// without sync lie apart until a later sync, and Crash drops them. The zero value is an empty Disk.
type Disk struct {
	mu struct {
		sync.Mutex
		synced  map[string]string // stored key -> stored value
		visible map[string]string // synced and the batches of unsynced
		pending []map[string]*string
		faults  []*Fault
		open    *handle
		syncs   int
	}
}

// Open returns the catalogue, or catalog.ErrLocked if one is open.
func (d *Disk) Open() (catalog.Catalog, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.faultLocked(Open); f != nil {
		return nil, f.Err
	}
	if d.mu.open != nil {
		return nil, errors.Wrap(catalog.ErrLocked, "catalogtest")
	}
	if d.mu.synced == nil {
		d.mu.synced, d.mu.visible = map[string]string{}, map[string]string{}
	}
	d.mu.open = &handle{disk: d}
	return d.mu.open, nil
}

// Crash is the death of the machine: of the batches that were not synced only the first keep survive, and the open
// catalogue is dead.
func (d *Disk) Crash(keep int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, changes := range d.mu.pending[:min(keep, len(d.mu.pending))] {
		write(d.mu.synced, changes)
	}
	d.mu.pending = nil
	d.mu.visible = maps.Clone(d.mu.synced)
	d.mu.open = nil
}

// Kill is the death of the process: nothing that was applied is lost, and the open catalogue is dead.
func (d *Disk) Kill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.open = nil
}

// Inject makes a later call fail, once. Faults of one Op count calls independently.
func (d *Disk) Inject(f Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.faults = append(d.mu.faults, &f)
}

// Heal forgets the faults that have not happened.
func (d *Disk) Heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.faults = nil
}

// Armed reports whether a fault has not happened yet.
func (d *Disk) Armed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.mu.faults) > 0
}

// Corrupt flips one bit of the stored record of one generation, if there is one, on the disk and in what is visible.
func (d *Disk) Corrupt(tenant, key string, gen uint64, bit int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	stored := string(catalog.AppendKey(nil, tenant, key, gen))
	for _, m := range []map[string]string{d.mu.synced, d.mu.visible} {
		if value, ok := m[stored]; ok {
			p := []byte(value)
			p[bit/8%len(p)] ^= 1 << (bit % 8)
			m[stored] = string(p)
		}
	}
}

// Unsynced is the number of batches that Crash(0) would lose.
func (d *Disk) Unsynced() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.mu.pending)
}

// Syncs is the number of Apply calls with sync so far.
func (d *Disk) Syncs() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.syncs
}

func (d *Disk) faultLocked(op Op) *Fault {
	var hit *Fault
	d.mu.faults = slices.DeleteFunc(d.mu.faults, func(f *Fault) bool {
		if f.Op != op {
			return false
		}
		if f.After--; f.After < 0 && hit == nil {
			hit = f
		}
		return hit == f
	})
	return hit
}

func write(m map[string]string, changes map[string]*string) {
	for key, value := range changes {
		if value == nil {
			delete(m, key)
		} else {
			m[key] = *value
		}
	}
}

// handle is one open catalogue of a Disk.
type handle struct{ disk *Disk }

// enter locks the disk for a call. Without an error the caller unlocks it.
func (h *handle) enter(op Op) (*Fault, error) {
	h.disk.mu.Lock()
	if h.disk.mu.open != h {
		h.disk.mu.Unlock()
		return nil, catalog.ErrClosed
	}
	f := h.disk.faultLocked(op)
	if f != nil && !f.Applied {
		h.disk.mu.Unlock()
		return nil, f.Err
	}
	return f, nil
}

func (h *handle) Apply(b *catalog.Batch, sync bool) error {
	if err := b.Err(); err != nil {
		return err
	}
	if b.Len() == 0 && !sync {
		return nil
	}
	fault, err := h.enter(Apply)
	if err != nil {
		return err
	}
	d := h.disk
	defer d.mu.Unlock()
	changes := make(map[string]*string, b.Len())
	for key, value := range b.All() {
		changes[string(key)] = nil
		if value != nil {
			v := string(value)
			changes[string(key)] = &v
		}
	}
	write(d.mu.visible, changes)
	d.mu.pending = append(d.mu.pending, changes)
	if sync {
		d.mu.syncs++
		d.syncLocked()
	}
	if fault != nil {
		return fault.Err
	}
	return nil
}

func (d *Disk) syncLocked() {
	for _, changes := range d.mu.pending {
		write(d.mu.synced, changes)
	}
	d.mu.pending = nil
}

// Scan hands out strings in memory that it overwrites after the call, so that a caller who keeps one is found out.
func (h *handle) Scan(ctx context.Context, fn func(*catalog.Record) error) error {
	if _, err := h.enter(Scan); err != nil {
		return err
	}
	snapshot := maps.Clone(h.disk.mu.visible)
	h.disk.mu.Unlock()
	var first error
	for _, stored := range slices.Sorted(maps.Keys(snapshot)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !catalog.IsRecordKey([]byte(stored)) {
			continue
		}
		key, value := []byte(stored), []byte(snapshot[stored])
		r := new(catalog.Record)
		if err := r.Decode(key, value); err != nil {
			if first == nil {
				first = err
			}
			continue
		}
		err := fn(r)
		poison(key)
		poison(value)
		*r = catalog.Record{}
		if err != nil {
			return err
		}
	}
	return errors.WithMessage(first, "catalogtest: scan")
}

func poison(p []byte) {
	for i := range p {
		p[i] = 0xDB
	}
}

func (h *handle) Get(tenant, key string, gen uint64) (*catalog.Record, bool, error) {
	if len(tenant) > catalog.MaxTenantBytes || len(key) > catalog.MaxKeyBytes {
		return nil, false, nil
	}
	if _, err := h.enter(Get); err != nil {
		return nil, false, err
	}
	defer h.disk.mu.Unlock()
	stored := catalog.AppendKey(nil, tenant, key, gen)
	value, ok := h.disk.mu.visible[string(stored)]
	if !ok {
		return nil, false, nil
	}
	r := new(catalog.Record)
	if err := r.Decode(stored, []byte(value)); err != nil {
		return nil, false, err
	}
	return r, true, nil
}

func (h *handle) Meta(name string) ([]byte, bool, error) {
	if _, err := h.enter(Meta); err != nil {
		return nil, false, err
	}
	defer h.disk.mu.Unlock()
	stored := catalog.AppendMetaKey(nil, name)
	value, ok := h.disk.mu.visible[string(stored)]
	if !ok {
		return nil, false, nil
	}
	p, err := catalog.OpenMeta(stored, []byte(strings.Clone(value)))
	return p, err == nil, err
}

// Close leaves unsynced batches unsynced, as RocksDB does: only a crash of the machine tells the difference.
func (h *handle) Close() error {
	_, err := h.enter(Close)
	if errors.Is(err, catalog.ErrClosed) {
		return nil
	}
	if err != nil {
		return err
	}
	h.disk.mu.open = nil
	h.disk.mu.Unlock()
	return nil
}
