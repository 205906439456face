// Command batch moves pages between a program's own memory and the store, many in one call and with one copy each way.
// The pages of a request are a group: they are kept and evicted together.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/kvcache-ai/mooncake-go/store"
)

const (
	pages     = 4
	pageBytes = 64 << 10
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

	out, in := make([]byte, pages*pageBytes), make([]byte, (pages+1)*pageBytes)
	opts := &store.PutOptions{Type: store.KVCache, Group: "request-7"}
	var puts []store.PutItem
	var gets []store.GetItem
	for i := range pages {
		page := out[i*pageBytes : (i+1)*pageBytes]
		copy(page, bytes.Repeat([]byte{byte('a' + i)}, pageBytes))
		puts = append(puts, store.PutItem{Key: fmt.Sprint("page-", i), Parts: [][]byte{page}, Opts: opts})
		gets = append(gets, store.GetItem{Key: fmt.Sprint("page-", i), Dst: [][]byte{in[i*pageBytes : (i+1)*pageBytes]}})
	}
	gets = append(gets, store.GetItem{Key: "page-9", Dst: [][]byte{in[pages*pageBytes:]}})

	for i, err := range s.PutBatch(ctx, puts) {
		if err != nil {
			return err
		}
		fmt.Printf("put %s: OK\n", puts[i].Key)
	}
	s.GetBatch(ctx, gets, nil)
	for _, got := range gets {
		switch {
		case errors.Is(got.Err, store.ErrNotFound):
			fmt.Printf("get %s: OBJECT_NOT_FOUND\n", got.Key)
		case got.Err != nil:
			return got.Err
		default:
			fmt.Printf("get %s: %d bytes\n", got.Key, got.N)
		}
	}
	if !bytes.Equal(in[:len(out)], out) {
		return errors.New("the bytes that came back are not the ones that were put")
	}
	fmt.Println("equal: 1")
	return nil
}
