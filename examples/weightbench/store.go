package main

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store"
	"github.com/kvcache-ai/mooncake-go/weight"
)

var ref = weight.Ref{ModelID: "bench/model", Revision: "1"}

// weights is a store with the weights in it.
type weights struct {
	*weight.Manager
	s   *store.Store
	dir string
}

// openWeights opens a store whose memory is all there, so that populating it disturbs nothing.
func openWeights(ctx context.Context, dir string, memory int64) (*weights, error) {
	s, err := store.Open(ctx, store.Options{Dir: dir, MemoryBytes: memory, HighWatermark: 1, VolatileMemory: dir != "",
		Offload: store.OffloadNever, PromoteAfter: -1})
	if err != nil {
		return nil, err
	}
	w := &weights{s: s, dir: dir}
	if err = s.WaitReady(ctx); err == nil {
		w.Manager, err = weight.Open(ctx, s, weight.Options{})
	}
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return w, nil
}

func (w *weights) close() error {
	err := w.Manager.Close()
	if serr := w.s.Close(); err == nil {
		err = serr
	}
	return err
}

// settle waits until the store, which gives room back and takes memory again beside its callers, has done so.
func (w *weights) settle(ctx context.Context) error {
	for last := int64(-1); ; {
		u, err := w.s.Usage()
		if err != nil || u.MemoryTaken == last && u.InUse == 0 {
			return err
		}
		last = u.MemoryTaken
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// end closes the store and removes its directory.
func (w *weights) end() {
	_ = w.close()
	if w.dir != "" {
		_ = os.RemoveAll(w.dir)
	}
}

// sourceRequest asks for all of a checkpoint.
func sourceRequest(c *checkpoint) weight.ImportRequest {
	return weight.ImportRequest{Ref: ref, Source: c.dir}
}

// link is what a directory of Load has for a file.
type link struct {
	same  bool // the inode that the store keeps
	bytes int64
}

// links compares the loaded directory with the files of the store.
func (w *weights) links(ctx context.Context, l *weight.Loaded) ([]link, error) {
	var out []link
	for _, f := range l.Manifest().Files {
		here, err := os.Stat(filepath.Join(l.Dir(), f.Name))
		if err != nil {
			return nil, err
		}
		same, err := w.sameFile(ctx, f, here)
		if err != nil {
			return nil, errors.WithMessage(err, f.Name)
		}
		out = append(out, link{same, f.Size})
	}
	return out, nil
}

func (w *weights) sameFile(ctx context.Context, f weight.File, here os.FileInfo) (bool, error) {
	file, err := w.s.File(ctx, f.Key, nil)
	if errors.Is(err, store.ErrNotSupported) {
		return false, nil // too small for a file of its own
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = file.Close() }()
	kept, err := os.Stat(file.Path())
	return err == nil && os.SameFile(here, kept), err
}
