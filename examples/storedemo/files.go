package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store"
)

// file is one file of the source directory, which is an object under key.
type file struct {
	path, key string
	size      int64
	kind      store.ObjectType
	digest    [sha256.Size]byte
}

// types says what a file is by its suffix; the others are General.
var types = map[string]store.ObjectType{
	".safetensors": store.Weight, ".gguf": store.Weight, ".pt": store.Weight, ".pth": store.Weight, ".bin": store.Weight,
	".npy": store.Tensor, ".npz": store.Tensor, ".kv": store.KVCache,
	".jsonl": store.Sample, ".parquet": store.Sample, ".csv": store.Sample, ".arrow": store.Sample,
	".json": store.Metadata, ".yaml": store.Metadata, ".yml": store.Metadata, ".toml": store.Metadata, ".md": store.Metadata,
	".txt": store.Metadata,
}

// scan finds the regular files that an object can hold, and takes their SHA-256.
func (d *demo) scan(ctx context.Context) error {
	start, total, skipped := time.Now(), int64(0), 0
	err := filepath.WalkDir(d.source, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		f, err := d.describe(path)
		if err != nil {
			return err
		}
		if f.size == 0 || len(f.key) > store.MaxKeyBytes {
			skipped++
			return nil
		}
		total += f.size
		d.files = append(d.files, f)
		return ctx.Err()
	})
	if err != nil {
		return errors.WithMessage(err, "scan")
	}
	if len(d.files) == 0 {
		return errors.Errorf("%s has no file with content", d.source)
	}
	took := time.Since(start)
	fmt.Printf("%s: %d files, %s, SHA-256 in %s (%s)", d.source, len(d.files), size(total), short(took), rate(total, took))
	if skipped > 0 {
		fmt.Printf("; %d skipped that are empty or whose name is too long", skipped)
	}
	fmt.Println()
	return nil
}

func (d *demo) describe(path string) (f file, err error) {
	rel, err := filepath.Rel(d.source, path)
	if err != nil {
		return f, err
	}
	f.path, f.key, f.kind = path, filepath.ToSlash(rel), store.General
	if t, ok := types[strings.ToLower(filepath.Ext(path))]; ok {
		f.kind = t
	}
	f.digest, f.size, err = digest(path)
	return f, err
}

func digest(path string) (sum [sha256.Size]byte, n int64, err error) {
	in, err := os.Open(path)
	if err != nil {
		return sum, 0, err
	}
	defer in.Close()
	h := sha256.New()
	if n, err = io.Copy(h, in); err != nil {
		return sum, 0, err
	}
	h.Sum(sum[:0])
	return sum, n, nil
}
