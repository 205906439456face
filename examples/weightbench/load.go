package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kvcache-ai/mooncake-go/examples/contest"
)

const loadFiles = 100

// runLoad loads a revision of 100 shards: from the SSD tier by hard links, and from memory.
func (b *bench) runLoad(ctx context.Context, c *contest.Bench) error {
	from, err := makeCheckpoint(filepath.Join(c.Dir, "hundred"), loadFiles*minShard*9/8, loadFiles)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(from.dir) }()
	for _, volatile := range []bool{false, true} {
		if err := loadOne(ctx, c, from, volatile); err != nil {
			return err
		}
	}
	return nil
}

func loadOne(ctx context.Context, c *contest.Bench, from *checkpoint, volatile bool) error {
	w, err := openWeights(ctx, filepath.Join(c.Dir, "load"), from.bytes+spare)
	if err != nil {
		return err
	}
	defer w.end()
	q := sourceRequest(from)
	q.Volatile = volatile
	if _, err := w.Import(ctx, q); err != nil {
		return err
	}
	where := map[bool]string{false: "SSD", true: "memory"}[volatile]
	m, err := c.Contest(loadTurn(ctx, w), linkTurn(filepath.Join(c.Dir, "links"), from))
	if err != nil {
		return err
	}
	c.Add(contest.Result{Case: fmt.Sprintf("Load of %d files, %s", loadFiles, where), Unit: "ms", Value: m[0]}.
		Than(m[1], "link, stat and unlink").Want("<= 50 ms", m[0] <= 50))
	return countCopies(ctx, c, w)
}

func loadTurn(ctx context.Context, w *weights) contest.Contender {
	return func() (float64, error) {
		start := time.Now()
		l, err := w.Load(ctx, ref, nil)
		if err != nil {
			return 0, err
		}
		took := time.Since(start)
		return took.Seconds() * 1e3, l.Close()
	}
}

// linkTurn does what no loading by links can do without.
func linkTurn(dir string, from *checkpoint) contest.Contender {
	return func() (float64, error) {
		start := time.Now()
		if err := os.Mkdir(dir, 0o755); err != nil {
			return 0, err
		}
		for _, path := range from.shards {
			if _, err := os.Stat(path); err != nil {
				return 0, err
			}
			if err := os.Link(path, filepath.Join(dir, filepath.Base(path))); err != nil {
				return 0, err
			}
		}
		return time.Since(start).Seconds() * 1e3, os.RemoveAll(dir)
	}
}

// countCopies adds up what a loaded directory has that is not the store's own file.
func countCopies(ctx context.Context, c *contest.Bench, w *weights) error {
	l, err := w.Load(ctx, ref, nil)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	links, err := w.links(ctx, l)
	if err != nil {
		return err
	}
	var same int
	var copied, small int64
	for _, k := range links {
		switch {
		case k.same:
			same++
		case k.bytes >= minShard:
			copied += k.bytes
		default:
			small += k.bytes
		}
	}
	c.Add(contest.Result{Case: "  bytes of weights copied", Unit: "B", Value: float64(copied),
		Note: fmt.Sprintf("%d of %d files are the store's own inodes; %d bytes in small ones", same, len(links), small)}.
		Want("0", copied == 0))
	return nil
}
