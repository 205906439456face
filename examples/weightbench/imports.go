package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/kvcache-ai/mooncake-go/examples/contest"
)

const (
	threads = 2        // that hash and write in the comparisons: the import's default
	spare   = 64 << 20 // memory of a store beyond what the files take
)

func (b *bench) runMemory(ctx context.Context, c *contest.Bench) error {
	w, err := openWeights(ctx, "", b.made.bytes+spare)
	if err != nil {
		return err
	}
	defer w.end()
	hash, take := contest.NewMeter(b.made.bytes), contest.NewMeter(b.made.bytes)
	m, err := c.Contest(b.hashAll(hash), b.importTo(ctx, w, take))
	if err != nil {
		return err
	}
	c.Add(contest.Result{Case: "import to memory", Unit: "GB/s", Value: m[1], Note: shaNote()}.
		Than(m[0], "SHA-256, 2 threads").AtLeast(0.65))
	c.Add(cpuResult(take, hash))
	return nil
}

// cpuResult compares processor time, in which a busy machine shows less.
func cpuResult(take, hash *contest.Meter) contest.Result {
	return contest.Result{Case: "  processor time", Unit: "s/GB", Value: take.CPU()}.Than(hash.CPU(), "SHA-256, 2 threads")
}

func shaNote() string {
	if contest.HasSHA() {
		return "the CPU has SHA instructions, Go uses them"
	}
	return "the CPU has no SHA instructions"
}

// hashAll reads and hashes the shards, two at a time.
func (b *bench) hashAll(meter *contest.Meter) contest.Contender {
	return func() (float64, error) {
		jobs := make(chan string, len(b.made.shards))
		for _, path := range b.made.shards {
			jobs <- path
		}
		close(jobs)
		return meter.Time(func() error {
			_, err := contest.Parallel(threads, func(int) error {
				for path := range jobs {
					if err := hashFile(path); err != nil {
						return err
					}
				}
				return nil
			})
			return err
		})
	}
}

func hashFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	h, buf := sha256.New(), make([]byte, 256<<10)
	_, err = io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{f}, buf)
	_ = h.Sum(nil)
	return err
}

// importTo is a turn that imports everything; what it stored is removed untimed.
func (b *bench) importTo(ctx context.Context, w *weights, meter *contest.Meter) contest.Contender {
	return func() (float64, error) {
		v, err := meter.Time(func() error {
			_, err := w.Import(ctx, sourceRequest(b.made))
			return err
		})
		if err != nil {
			return 0, err
		}
		if err := w.Delete(ctx, ref); err != nil {
			return 0, err
		}
		return v, w.settle(ctx)
	}
}

func (b *bench) runDurable(ctx context.Context, c *contest.Bench) error {
	w, err := openWeights(ctx, filepath.Join(c.Dir, "store"), spare)
	if err != nil {
		return err
	}
	defer w.end()
	hash, take := contest.NewMeter(b.made.bytes), contest.NewMeter(b.made.bytes)
	m, err := c.Contest(b.hashAll(hash), b.machine(ctx, c.Dir), b.importTo(ctx, w, take))
	if err != nil {
		return err
	}
	of := fmt.Sprintf("%s, %d files", contest.DiskTool(), threads)
	met := m[2] >= 0.8*m[1] || m[2] >= 0.65*m[0]
	c.Add(contest.Result{Case: "durable import", Unit: "GB/s", Value: m[2]}.Than(m[1], of).
		Want(">= 0.8x, or 0.65x of SHA-256", met))
	c.Add(contest.Result{Case: "  again", Unit: "GB/s", Value: m[2]}.Than(m[0], "SHA-256, 2 threads"))
	c.Add(cpuResult(take, hash))
	return nil
}

// machine writes as many bytes as the import, to two files side by side, past the page cache, and syncs them.
func (b *bench) machine(ctx context.Context, dir string) contest.Contender {
	return func() (float64, error) {
		d := contest.Disk{Write: true, Refill: true, Bytes: b.made.bytes / threads / contest.DiskBytes * contest.DiskBytes}
		for i := range threads {
			d.Files = append(d.Files, filepath.Join(dir, fmt.Sprintf("machine%d", i)))
		}
		v, err := d.Run(ctx)
		for _, f := range d.Files {
			_ = os.Remove(f)
		}
		return v, err
	}
}

// runResume cancels an import when half of the files are stored, closes the store, and imports again.
func (b *bench) runResume(ctx context.Context, c *contest.Bench) error {
	dir := filepath.Join(c.Dir, "resume")
	first, err := openWeights(ctx, dir, spare)
	if err != nil {
		return err
	}
	defer first.end()
	stored, err := b.half(ctx, first)
	if err != nil {
		return err
	}
	if err := first.close(); err != nil {
		return err
	}
	w, err := openWeights(ctx, dir, spare)
	if err != nil {
		return err
	}
	defer w.end()
	r, err := w.Import(ctx, sourceRequest(b.made))
	if err != nil {
		return err
	}
	missing := r.Manifest.Size - stored
	c.Add(contest.Result{Case: "bytes read by the second import", Unit: "MB", Value: float64(r.Read) / 1e6,
		Note: fmt.Sprintf("%d of %d files were there", r.Resumed, len(r.Manifest.Files))}.
		Than(float64(missing)/1e6, "in missing files").Want("only the missing", r.Read == missing))
	return nil
}

// half imports until half of the files are there, and returns the bytes of those that are.
func (b *bench) half(ctx context.Context, w *weights) (int64, error) {
	i, err := w.Start(ctx, sourceRequest(b.made))
	if err != nil {
		return 0, err
	}
	for p := i.Progress(); p.Phase != "done" && (p.Files == 0 || p.FilesDone < p.Files/2); p = i.Progress() {
		time.Sleep(time.Millisecond)
	}
	i.Cancel()
	<-i.Done()
	return i.Progress().BytesDone, ctx.Err()
}
