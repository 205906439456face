package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/examples/contest"
	"github.com/kvcache-ai/mooncake-go/weight"
)

// childArg makes this program a child that imports once and tells what memory that took.
const childArg = "import-child"

// childReport is in bytes.
type childReport struct {
	Anon   int64 // most RssAnon: Go's heap and stacks, buffers, libraries' own memory
	Shared int64 // the store's memory that holds no file's bytes
	Peak   int64 // VmHWM, with shared memory and mapped code
}

// runPeak imports in a process of its own: to memory, and durably two sizes of model.
func (b *bench) runPeak(ctx context.Context, c *contest.Bench) error {
	quarter, err := makeCheckpoint(filepath.Join(c.Dir, "quarter"), max(b.size/4, int64(b.shards)*minShard), b.shards)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(quarter.dir) }()
	for _, t := range []struct {
		name, dir string
		from      *checkpoint
	}{
		{"import to memory", "", b.made},
		{"durable import", filepath.Join(c.Dir, "peak"), b.made},
		{"durable import of a quarter", filepath.Join(c.Dir, "peak"), quarter},
	} {
		r, err := runChild(ctx, t.from, t.dir)
		if err != nil {
			return errors.WithMessage(err, t.name)
		}
		beyond := float64(r.Anon+r.Shared) / (1 << 20)
		c.Add(contest.Result{Case: t.name, Unit: "MiB", Value: beyond,
			Note: fmt.Sprintf("%.1f MiB RssAnon, %.1f MiB metadata; VmHWM %.0f MiB with %.0f MiB stored", mib(r.Anon), mib(r.Shared),
				mib(r.Peak), mib(t.from.bytes))}.Want("<= 64 MiB", beyond <= 64))
	}
	return nil
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

func runChild(ctx context.Context, from *checkpoint, dir string) (r childReport, err error) {
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	cmd := exec.CommandContext(ctx, self, childArg, from.dir, fmt.Sprint(from.bytes), dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(out, &r)
}

// childMain imports args[0], of args[1] bytes, into a store in args[2], in memory if that is empty.
func childMain(args []string) error {
	if len(args) != 3 {
		return errors.New("a child takes source, size and directory")
	}
	var size int64
	if _, err := fmt.Sscan(args[1], &size); err != nil {
		return err
	}
	memory := int64(spare)
	if args[2] == "" {
		memory += size
	}
	ctx := context.Background()
	w, err := openWeights(ctx, args[2], memory)
	if err != nil {
		return err
	}
	defer w.end()
	r, err := watch(func() error {
		_, err := w.Import(ctx, weight.ImportRequest{Ref: ref, Source: args[0]})
		return err
	})
	if err != nil {
		return err
	}
	u, err := w.s.Usage()
	if err != nil {
		return err
	}
	r.Shared = u.MetadataTaken
	return json.NewEncoder(os.Stdout).Encode(r)
}

// watch samples the memory of this process while fn runs; the kernel keeps no high-water mark of RssAnon.
func watch(fn func() error) (r childReport, err error) {
	done := make(chan error, 1)
	go func() { done <- fn() }()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		r.Anon = max(r.Anon, contest.Status("self", "RssAnon"))
		r.Peak = contest.Status("self", "VmHWM")
		select {
		case err := <-done:
			return r, err
		case <-tick.C:
		}
	}
}
