// Command views reads an object where it lies, without a copy. A view keeps its bytes, also when the key is replaced
// meanwhile.
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"

	"github.com/kvcache-ai/mooncake-go/store"
)

const size = 1 << 20

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	s, err := store.Open(ctx, store.Options{MemoryBytes: 64 << 20})
	if err != nil {
		return err
	}
	defer s.Close()

	if err := s.Put(ctx, "k", bytes.Repeat([]byte("o"), size), nil); err != nil {
		return err
	}
	old, err := s.View(ctx, "k", nil)
	if err != nil {
		return err
	}
	defer old.Close()

	if err := s.Upsert(ctx, "k", bytes.Repeat([]byte("n"), size), nil); err != nil {
		return err
	}
	now, err := s.View(ctx, "k", nil)
	if err != nil {
		return err
	}
	defer now.Close()
	fmt.Printf("old view: %d bytes of %c\n", old.Size(), old.Bytes()[size-1])
	fmt.Printf("new view: %d bytes of %c\n", now.Size(), now.Bytes()[size-1])
	return nil
}
