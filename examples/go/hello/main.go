// Command hello opens a store in this process, puts an object, reads it back and removes it.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/kvcache-ai/mooncake-go/store"
)

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
	if err := s.Put(ctx, "hello", []byte("world"), nil); err != nil {
		return err
	}
	value, err := s.Get(ctx, "hello", nil)
	if err != nil {
		return err
	}
	fmt.Printf("get hello: %s\n", value)
	fmt.Println("exists:", exists(s))

	// The reads above protect the object for ten seconds: only force removes it now.
	fmt.Println("remove:", name(s.Remove("hello", false)))
	fmt.Println("remove by force:", name(s.Remove("hello", true)))
	fmt.Println("exists:", exists(s))
	return nil
}

func exists(s *store.Store) int {
	if found, err := s.Exists("hello"); err == nil && found {
		return 1
	}
	return 0
}

func name(err error) string {
	switch {
	case err == nil:
		return "OK"
	case errors.Is(err, store.ErrHasLease):
		return "OBJECT_HAS_LEASE"
	}
	return err.Error()
}
