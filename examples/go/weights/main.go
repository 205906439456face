// Command weights imports a model directory into a store on disk, loads it back as a directory of links that an engine
// can open, and reads a tensor of it where it lies.
//
//	weights STORE-DIRECTORY MODEL-DIRECTORY
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"

	"github.com/kvcache-ai/mooncake-go/store"
	"github.com/kvcache-ai/mooncake-go/weight"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintf(os.Stderr, "usage: %s STORE-DIRECTORY MODEL-DIRECTORY\n", os.Args[0])
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dir, source string) error {
	s, err := store.Open(ctx, store.Options{Dir: dir, MemoryBytes: 64 << 20, VolatileMemory: true})
	if err != nil {
		return err
	}
	defer s.Close()
	m, err := weight.Open(ctx, s, weight.Options{})
	if err != nil {
		return err
	}
	defer m.Close()

	ref := weight.Ref{ModelID: "demo/tiny", Revision: "1"}
	result, err := m.Import(ctx, weight.ImportRequest{Ref: ref, Source: source})
	if err != nil {
		return err
	}
	fmt.Printf("imported %d files\n", len(result.Manifest.Files))

	loaded, err := m.Load(ctx, ref, nil)
	if err != nil {
		return err
	}
	defer loaded.Close()
	_, err = os.Stat(filepath.Join(loaded.Dir(), "config.json"))
	if err != nil {
		return err
	}
	fmt.Println("config.json is there: 1")

	tensors, err := m.Tensors(ctx, ref)
	if err != nil {
		return err
	}
	for _, t := range tensors {
		fmt.Printf("tensor %s %s, %d bytes\n", t.Name, t.DType, t.Len)
	}
	v, err := m.ViewTensor(ctx, ref, "layer.weight")
	if err != nil {
		return err
	}
	defer v.Close()
	fmt.Printf("sum of layer.weight: %g\n", sum(v.Bytes()))
	return nil
}

// sum adds up float32 values as safetensors stores them.
func sum(p []byte) (total float32) {
	for ; len(p) > 0; p = p[4:] {
		total += math.Float32frombits(binary.LittleEndian.Uint32(p))
	}
	return total
}
