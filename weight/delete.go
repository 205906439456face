package weight

import (
	"context"
	"time"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store"
)

// Delete removes a READY revision. One that is loaded is ErrInUse, with who uses it; bytes that other revisions share
// stay for them. After a crash in the middle the next Open finishes it.
func (m *Manager) Delete(ctx context.Context, ref Ref) error {
	_, err := m.Manifest(ctx, ref)
	if errors.Is(err, ErrNotReady) {
		return errors.WithMessagef(err, "delete %v: use Abort", ref)
	}
	if err != nil && !errors.Is(err, ErrUnreadable) && !errors.Is(err, store.ErrChecksum) && !errors.Is(err, store.ErrNoReplica) {
		return errors.WithMessagef(err, "delete %v", ref)
	}
	return errors.WithMessagef(m.eraseIdle(ctx, ref), "delete %v", ref)
}

// Abort removes what an unfinished import has stored, and ends the import if it is running here.
func (m *Manager) Abort(ctx context.Context, ref Ref) error {
	if err := ref.Validate(); err != nil {
		return err
	}
	m.mu.Lock()
	running := m.mu.imports[ref]
	m.mu.Unlock()
	if running != nil {
		running.stop()
		<-running.done
	}
	ended := running != nil && errors.Is(running.err, context.Canceled) // it may have stored nothing yet
	if ok, err := m.s.Probe(ref.ManifestKey()); err != nil {
		return errors.WithMessagef(err, "abort %v", ref)
	} else if ok {
		return errors.WithMessagef(ErrInvalid, "abort %v: it is READY; use Delete", ref)
	}
	if ok, err := m.s.Probe(ref.recordKey()); err != nil {
		return errors.WithMessagef(err, "abort %v", ref)
	} else if !ok && ended {
		return nil
	} else if !ok {
		return errors.WithMessagef(ErrNotFound, "abort %v", ref)
	}
	return errors.WithMessagef(m.eraseIdle(ctx, ref), "abort %v", ref)
}

// eraseIdle erases a revision that nobody uses and keeps others from using it meanwhile.
func (m *Manager) eraseIdle(ctx context.Context, ref Ref) error {
	release, err := m.claim(ref)
	if err != nil {
		return err
	}
	defer release()
	if err := m.inUse(ref); err != nil {
		return err
	}
	return m.erase(ctx, ref)
}

// claim keeps imports, loads and deletions of a revision apart: an Import that does nothing holds its place.
func (m *Manager) claim(ref Ref) (release func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		return nil, ErrClosed
	}
	if m.mu.imports[ref] != nil {
		return nil, ErrImporting
	}
	hold := &Import{done: make(chan struct{}), cancel: func() {}, deleting: true}
	m.mu.imports[ref] = hold
	return func() {
		m.mu.Lock()
		delete(m.mu.imports, ref)
		delete(m.mu.tensors, ref)
		m.mu.Unlock()
		close(hold.done)
	}, nil
}

// erase removes a revision: first a record that says so, then the manifest, so that a crash at any point leaves one
// that is READY or one that the next Open goes on erasing.
func (m *Manager) erase(ctx context.Context, ref Ref) error {
	now := time.Now().UTC()
	r := record{Version: baseVersion, ModelID: ref.ModelID, Revision: ref.Revision, Deleting: true, Started: now, Touched: now}
	if err := m.putJSON(ctx, ref.recordKey(), r); err != nil {
		return err
	}
	if err := m.remove(ref.ManifestKey()); err != nil {
		return err
	}
	m.known.forgetAll(ref)
	if _, err := m.s.RemoveGroup(ref.group(), true); err != nil && !errors.Is(err, store.ErrGroupNotFound) {
		return err
	}
	return m.forgetImport(ctx, ref)
}

// forgetImport removes the traces of an import: receipts, then the record.
func (m *Manager) forgetImport(ctx context.Context, ref Ref) error {
	var keys []string
	for info, err := range m.s.Objects(ctx, ref.receiptPrefix()) {
		if err != nil {
			return err
		}
		keys = append(keys, info.Key)
	}
	if err := m.remove(keys...); err != nil {
		return err
	}
	return m.remove(ref.recordKey())
}
