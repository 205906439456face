package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"time"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store"
)

// streamBytes is the size from which a file is read straight into the store.
const streamBytes = 1 << 20

// put stores every file. What is there from an earlier run with --keep is replaced.
func (d *demo) put(ctx context.Context) error {
	var took time.Duration
	var total int64
	for i := range d.files {
		f := &d.files[i]
		t, err := d.putFile(ctx, f)
		if err != nil {
			return err
		}
		took, total = took+t, total+f.size
	}
	fmt.Printf("\nPut %s, %s, in %s: %s, checksums made on the way\n", objects(int64(len(d.files))), size(total), short(took),
		rate(total, took))
	return d.printUsage()
}

// putFile returns the time that the store took. For a large file that includes reading it, the store does that.
func (d *demo) putFile(ctx context.Context, f *file) (time.Duration, error) {
	// What is larger than half of memory goes straight to SSD.
	opts := store.PutOptions{Type: f.kind, Replace: true, Durable: f.size > d.memory/2}
	if f.size >= streamBytes {
		in, err := os.Open(f.path)
		if err != nil {
			return 0, err
		}
		defer in.Close()
		start := time.Now()
		err = d.s.PutFrom(ctx, f.key, in, f.size, &opts)
		return time.Since(start), err
	}
	p, err := os.ReadFile(f.path)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	err = d.s.Put(ctx, f.key, p, &opts)
	return time.Since(start), err
}

// readAll reads every object, verified by the store, and compares its SHA-256 with the file's.
func (d *demo) readAll(ctx context.Context) error {
	var took time.Duration
	var total int64
	var buf []byte
	before := d.s.Counters()
	for i := range d.files {
		f := &d.files[i]
		if int64(len(buf)) < f.size {
			buf = make([]byte, f.size)
		}
		start := time.Now()
		n, err := d.s.GetInto(ctx, f.key, buf[:f.size], &store.ReadOptions{Verify: store.VerifyAlways})
		took += time.Since(start)
		if err != nil {
			return err
		}
		if int64(n) != f.size || sha256.Sum256(buf[:n]) != f.digest {
			return errors.Errorf("%s: read back %d bytes that are not the file's %d (did it change meanwhile?)", f.path, n, f.size)
		}
		total += int64(n)
	}
	after := d.s.Counters()
	fmt.Printf("Read %s, %s, in %s: %s, all equal to their files; %d from memory, %d from SSD\n",
		objects(int64(len(d.files))), size(total), short(took), rate(total, took),
		after.Hits[store.TierMemory]-before.Hits[store.TierMemory], after.Hits[store.TierSSD]-before.Hits[store.TierSSD])
	return nil
}

// sync brings everything to stable storage, so that it would come back after a reboot as well.
func (d *demo) sync(ctx context.Context) error {
	start := time.Now()
	if err := d.s.Sync(ctx); err != nil {
		return err
	}
	u, err := d.s.Usage()
	if err != nil {
		return err
	}
	fmt.Printf("Sync in %s: everything is on stable storage, %s on disk\n", short(time.Since(start)), size(u.SSDOnDisk))
	return nil
}

func (d *demo) reopen(ctx context.Context) error {
	start := time.Now()
	s := d.s
	d.use(nil)
	if err := s.Close(); err != nil {
		return errors.WithMessage(err, "close")
	}
	fmt.Printf("\nClosed in %s\n", short(time.Since(start)))
	return d.open(ctx)
}

// lend shows the largest object without copying it: as memory, and as a path.
func (d *demo) lend(ctx context.Context) error {
	f := &d.files[0]
	for i := range d.files {
		if d.files[i].size > f.size {
			f = &d.files[i]
		}
	}
	fmt.Printf("\nLargest object: %s, %s, %v\n", f.key, size(f.size), f.kind)
	if err := d.view(ctx, f); err != nil {
		return err
	}
	return d.file(ctx, f)
}

func (d *demo) view(ctx context.Context, f *file) error {
	start := time.Now()
	v, err := d.s.View(ctx, f.key, nil)
	if err != nil {
		return err
	}
	took := time.Since(start)
	h := sha256.New()
	for _, p := range v.Segments() {
		h.Write(p)
	}
	if [sha256.Size]byte(h.Sum(nil)) != f.digest {
		return errors.Errorf("%s: the view's bytes are not the file's", f.key)
	}
	fmt.Printf("  as a view in %s, %d piece(s), no copy\n", short(took), len(v.Segments()))
	return v.Close()
}

func (d *demo) file(ctx context.Context, f *file) error {
	start := time.Now()
	lent, err := d.s.File(ctx, f.key, nil)
	if errors.Is(err, store.ErrNotSupported) {
		fmt.Println("  as a file: not, it is too small for one")
		return nil
	}
	if errors.Is(err, store.ErrNoSpace) {
		fmt.Println("  as a file: not, memory has no room for a copy while what was just read is protected (see --memory)")
		return nil
	}
	if err != nil {
		return err
	}
	took := time.Since(start)
	sum, _, err := digest(lent.Path())
	if err == nil && sum != f.digest {
		err = errors.Errorf("%s: the file handed out is not the source's", f.key)
	}
	if err != nil {
		_ = lent.Close()
		return err
	}
	fmt.Printf("  as a file in %s (%v): %s\n", short(took), lent.Tier(), lent.Path())
	return lent.Close()
}
