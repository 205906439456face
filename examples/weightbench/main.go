// Weightbench measures importing and loading model weights beside what the machine itself can do with the same bytes.
// Both take turns in one run, and the ratio is that of their medians, so that a busy machine slows both. It judges
// nothing: a missed goal is printed, the exit code is 0.
//
// It makes a sharded safetensors checkpoint in --dir and needs about four times its size there, and as much memory,
// page cache included.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kvcache-ai/mooncake-go/examples/contest"
)

// bench is what the rows share.
type bench struct {
	size   int64
	shards int
	python string
	made   *checkpoint // on first use
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == childArg {
		if err := childMain(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "weightbench:", err)
			os.Exit(1)
		}
		return
	}
	b := new(bench)
	gib := flag.Float64("size", 2, "`GiB` of the checkpoint")
	flag.IntVar(&b.shards, "shards", 8, "`files` of the checkpoint")
	flag.StringVar(&b.python, "python", "python3", "`interpreter` that has safetensors and numpy")
	with := func(run func(*bench, context.Context, *contest.Bench) error) func(context.Context, *contest.Bench) error {
		return func(ctx context.Context, c *contest.Bench) error {
			if err := b.prepare(c, *gib); err != nil {
				return err
			}
			return run(b, ctx, c)
		}
	}
	const most = 9 << 30
	contest.Main("weightbench", []contest.Row{
		{Name: "memory", About: "import to memory, source in the page cache", Memory: most, Run: with((*bench).runMemory)},
		{Name: "durable", About: "durable import, source in the page cache", Memory: most, Run: with((*bench).runDurable)},
		{Name: "peak", About: "memory of an import beyond the stored bytes", Memory: most, Run: with((*bench).runPeak)},
		{Name: "load", About: "Load of a revision with 100 files", Memory: 1 << 30, Run: with((*bench).runLoad)},
		{Name: "loader", About: "a stock safetensors loader, files in the page cache", Memory: most, Run: with((*bench).runLoader)},
		{Name: "tensor", About: "a tensor by name into a buffer", Memory: most, Run: with((*bench).runTensor)},
		{Name: "resume", About: "an import that was cancelled half way, again", Memory: most, Run: with((*bench).runResume)},
	})
}

// prepare makes the checkpoint, unless an earlier row has.
func (b *bench) prepare(c *contest.Bench, gib float64) (err error) {
	if b.made != nil {
		return nil
	}
	b.size = int64(gib * (1 << 30))
	if c.Quick {
		b.size /= 8
	}
	if b.shards < 1 || b.size/int64(b.shards) < minShard {
		return fmt.Errorf("%d bytes in %d shards: less than %d each", b.size, b.shards, minShard)
	}
	b.made, err = makeCheckpoint(filepath.Join(c.Dir, "original"), b.size, b.shards)
	return err
}
