package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/artifact/safetensors"
)

const (
	largeTensor = 16 << 20
	smallTensor = 4 << 10

	smallPerLarge = 64

	minShard = 1 << 20
)

// checkpoint is a model directory: shards of tensors of F16, an index and the small files that an engine reads.
type checkpoint struct {
	dir    string
	shards []string // full paths
	large  []string // names of tensors of largeTensor bytes
	small  []string // of smallTensor bytes
	bytes  int64    // of the shards
}

// makeCheckpoint writes one, whose pages stay in the page cache. No two shards are alike.
func makeCheckpoint(dir string, size int64, shards int) (*checkpoint, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	c := &checkpoint{dir: dir}
	weightMap := make(map[string]string)
	for i := range shards {
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, shards)
		tensors := c.tensors(i, size/int64(shards))
		for _, t := range tensors {
			weightMap[t.Name] = name
		}
		if err := c.writeShard(filepath.Join(dir, name), tensors, uint64(i)); err != nil {
			return nil, err
		}
	}
	index := map[string]any{"metadata": map[string]any{"total_size": c.bytes}, "weight_map": weightMap}
	for name, v := range map[string]any{
		"model.safetensors.index.json": index,
		"config.json":                  map[string]any{"architectures": []string{"Bench"}},
		"tokenizer.json":               map[string]any{"model": map[string]any{}},
	} {
		p, err := json.Marshal(v)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), p, 0o644)
		}
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// tensors fills a shard with large tensors, each with small ones before it, and one of what is left.
func (c *checkpoint) tensors(shard int, size int64) (list []safetensors.Tensor) {
	add := func(kind string, bytes int64) string {
		name := fmt.Sprintf("model.layers.%d.%s.%d", shard, kind, len(list))
		list = append(list, safetensors.Tensor{Name: name, DType: safetensors.F16, Shape: []int64{bytes / 2}})
		return name
	}
	for ; size >= largeTensor+smallPerLarge*smallTensor; size -= largeTensor + smallPerLarge*smallTensor {
		for range smallPerLarge {
			c.small = append(c.small, add("norm", smallTensor))
		}
		c.large = append(c.large, add("proj", largeTensor))
	}
	if size >= 2 {
		add("rest", size)
	}
	return list
}

func (c *checkpoint) writeShard(path string, tensors []safetensors.Tensor, seed uint64) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	random := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 7})
	n, err := safetensors.Write(w, tensors, nil, func(w io.Writer, t safetensors.Tensor) error {
		_, err := io.CopyN(w, random, t.Size())
		return err
	})
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync() // or its write-back would disturb what is measured
	}
	c.bytes += n
	c.shards = append(c.shards, path)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return errors.WithMessage(err, path)
}
