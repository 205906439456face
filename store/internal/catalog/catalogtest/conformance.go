package catalogtest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/pkg/errors"
	"github.com/stretchr/testify/require"
)

// Conformance checks what the contract of catalog.Catalog promises. open returns a catalogue on the same, at first
// empty directory each time it is called; the one before has been closed.
func Conformance(t *testing.T, open func(t *testing.T) func() (catalog.Catalog, error)) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, func() catalog.Catalog)
	}{
		{"RoundTrip", roundTrip},
		{"Limits", limits},
		{"Order", order},
		{"Meta", meta},
		{"ScanEnds", scanEnds},
		{"Closed", closed},
		{"Concurrent", concurrent},
		{"Model", model},
	} {
		t.Run(c.name, func(t *testing.T) {
			again := open(t)
			c.run(t, func() catalog.Catalog {
				cat, err := again()
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, cat.Close()) })
				return cat
			})
		})
	}
}

// All returns all records of c by tenant and key, with strings of their own.
func All(t testing.TB, c catalog.Catalog) map[[2]string]catalog.Record {
	all := map[[2]string]catalog.Record{}
	require.NoError(t, c.Scan(context.Background(), func(r *catalog.Record) error {
		own := Clone(r)
		all[[2]string{own.Tenant, own.Key}] = own
		return nil
	}))
	return all
}

// Clone copies a record that a Scan lent.
func Clone(r *catalog.Record) catalog.Record {
	own := *r
	own.Tenant, own.Key, own.Group = strings.Clone(r.Tenant), strings.Clone(r.Key), strings.Clone(r.Group)
	return own
}

// Random makes a record whose fields take all shapes, under the given key.
func Random(rng *rand.Rand, tenant, key string) catalog.Record {
	wide := func() uint64 { return rng.Uint64() >> rng.IntN(64) }
	r := catalog.Record{
		Tenant: tenant, Key: key,
		Gen:       wide(),
		Size:      int64(wide() >> 1),
		Type:      uint8(rng.Uint32()),
		Flags:     catalog.Flags(rng.Uint32()),
		SoftUntil: int64(wide()),
		Digest:    rng.Uint64(),
		Loc:       catalog.Loc{File: rng.Uint32(), Off: rng.Uint32(), Own: rng.Uint32()},
		OwnMtime:  int64(wide()),
	}
	if rng.IntN(2) == 0 {
		r.Group = strings.Repeat("g", rng.IntN(300))
	}
	return r
}

func roundTrip(t *testing.T, open func() catalog.Catalog) {
	c := open()
	long := func(n int) string { return strings.Repeat("\xff", n) }
	want := []catalog.Record{
		{},
		{Key: "k"},
		{Tenant: "k"},
		{Tenant: "t", Key: "a\x00b", Group: "g"},
		{
			Tenant: long(catalog.MaxTenantBytes), Key: long(catalog.MaxKeyBytes), Group: long(catalog.MaxGroupBytes),
			Gen: math.MaxUint64, Size: math.MaxInt64, Type: 255, Flags: 0xFFFF, SoftUntil: math.MinInt64,
			Digest: math.MaxUint64, Loc: catalog.Loc{File: 1, Off: 2, Own: math.MaxUint32}, OwnMtime: math.MaxInt64,
		},
	}
	var b catalog.Batch
	for i := range want {
		b.Put(&want[i])
	}
	require.Equal(t, len(want), b.Len())
	require.NoError(t, c.Apply(&b, true))
	b.Reset()
	require.NoError(t, c.Apply(&b, true), "an empty batch")
	require.NoError(t, c.Apply(&b, false), "an empty batch")

	check := func(c catalog.Catalog, want []catalog.Record) {
		t.Helper()
		require.Len(t, All(t, c), len(want))
		for _, w := range want {
			got, ok, err := c.Get(w.Tenant, w.Key)
			require.NoError(t, err)
			require.True(t, ok, "Get(%.20q, %.20q) found nothing", w.Tenant, w.Key)
			require.Equal(t, w, *got)
			require.Equal(t, w, All(t, c)[[2]string{w.Tenant, w.Key}])
		}
	}
	check(c, want)

	b.Delete("", "k")
	b.Delete("", "never there")
	want[3].Gen = 7
	b.Put(&want[1])
	b.Delete("", "k") // the last change of a key wins
	b.Put(&want[3])
	require.NoError(t, c.Apply(&b, false))
	want = append(want[:1], want[2:]...)
	check(c, want)
	_, ok, err := c.Get("", "k")
	require.NoError(t, err)
	require.False(t, ok)

	require.NoError(t, c.Close())
	check(open(), want)
}

func limits(t *testing.T, open func() catalog.Catalog) {
	c := open()
	over := func(n int) string { return strings.Repeat("x", n+1) }
	for name, add := range map[string]func(b *catalog.Batch){
		"tenant":     func(b *catalog.Batch) { b.Put(&catalog.Record{Tenant: over(catalog.MaxTenantBytes)}) },
		"key":        func(b *catalog.Batch) { b.Put(&catalog.Record{Key: over(catalog.MaxKeyBytes)}) },
		"group":      func(b *catalog.Batch) { b.Put(&catalog.Record{Group: over(catalog.MaxGroupBytes)}) },
		"size":       func(b *catalog.Batch) { b.Put(&catalog.Record{Size: -1}) },
		"delete":     func(b *catalog.Batch) { b.Delete("", over(catalog.MaxKeyBytes)) },
		"meta name":  func(b *catalog.Batch) { b.SetMeta(over(catalog.MaxMetaNameBytes), nil) },
		"meta value": func(b *catalog.Batch) { b.SetMeta("m", make([]byte, catalog.MaxMetaBytes+1)) },
		"reserved":   func(b *catalog.Batch) { b.SetMeta("format", nil) },
		"batch": func(b *catalog.Batch) {
			for b.Bytes() <= catalog.MaxBatchBytes {
				b.SetMeta("m", make([]byte, catalog.MaxMetaBytes))
			}
		},
	} {
		var b catalog.Batch
		b.Put(&catalog.Record{Key: "good"})
		add(&b)
		b.Put(&catalog.Record{Key: "good too"})
		require.ErrorIs(t, c.Apply(&b, true), catalog.ErrLimit, name)
		require.Empty(t, All(t, c), "%s: a refused batch is refused whole", name)
		b.Reset()
		require.NoError(t, b.Err(), name)
	}
	_, ok, err := c.Get(over(catalog.MaxTenantBytes), "")
	require.NoError(t, err)
	require.False(t, ok)
}

func order(t *testing.T, open func() catalog.Catalog) {
	c := open()
	want := [][2]string{{"", ""}, {"", "b"}, {"", "ba"}, {"b", ""}, {"b", "a"}, {"b", "\xff"}, {"aa", "a"}}
	var b catalog.Batch
	for i := range want {
		w := want[len(want)-1-i]
		b.Put(&catalog.Record{Tenant: w[0], Key: w[1]})
	}
	b.SetMeta("a", nil)
	b.SetMeta("z", nil)
	require.NoError(t, c.Apply(&b, false))
	var got [][2]string
	require.NoError(t, c.Scan(t.Context(), func(r *catalog.Record) error {
		own := Clone(r)
		got = append(got, [2]string{own.Tenant, own.Key})
		return nil
	}))
	require.Equal(t, want, got)
}

func meta(t *testing.T, open func() catalog.Catalog) {
	c := open()
	_, ok, err := c.Meta("next file")
	require.NoError(t, err)
	require.False(t, ok)
	var b catalog.Batch
	b.SetMeta("next file", []byte("1"))
	b.SetMeta("next file", []byte("2"))
	b.SetMeta("empty", nil)
	b.SetMeta("", make([]byte, catalog.MaxMetaBytes))
	require.NoError(t, c.Apply(&b, true))
	require.NoError(t, c.Close())
	c = open()
	for name, want := range map[string]string{"next file": "2", "empty": "", "": string(make([]byte, catalog.MaxMetaBytes))} {
		got, ok, err := c.Meta(name)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, want, string(got))
	}
}

func scanEnds(t *testing.T, open func() catalog.Catalog) {
	c := open()
	put(t, c, 3000, false)
	boom := errors.New("boom")
	n := 0
	require.Equal(t, boom, c.Scan(t.Context(), func(*catalog.Record) error {
		if n++; n == 1500 {
			return boom
		}
		return nil
	}))
	require.Equal(t, 1500, n)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, c.Scan(ctx, func(*catalog.Record) error { return nil }), context.Canceled)

	// A scan sees the state as of its call, and its function may use the catalogue.
	n = 0
	require.NoError(t, c.Scan(t.Context(), func(r *catalog.Record) error {
		n++
		var b catalog.Batch
		b.Delete(r.Tenant, r.Key)
		b.Put(&catalog.Record{Tenant: r.Tenant, Key: r.Key + "+"})
		return c.Apply(&b, false)
	}))
	require.Equal(t, 3000, n)
}

func put(t *testing.T, c catalog.Catalog, n int, sync bool) {
	t.Helper()
	var b catalog.Batch
	for i := range n {
		b.Put(&catalog.Record{Key: fmt.Sprintf("key %06d", i), Gen: uint64(i)})
	}
	require.NoError(t, c.Apply(&b, sync))
}

func closed(t *testing.T, open func() catalog.Catalog) {
	c := open()
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	var b catalog.Batch
	require.ErrorIs(t, c.Apply(&b, true), catalog.ErrClosed)
	require.ErrorIs(t, c.Scan(t.Context(), nil), catalog.ErrClosed)
	_, _, err := c.Get("", "")
	require.ErrorIs(t, err, catalog.ErrClosed)
	_, _, err = c.Meta("")
	require.ErrorIs(t, err, catalog.ErrClosed)
}

// concurrent runs every method while Close comes in between: each call does its work or says ErrClosed.
func concurrent(t *testing.T, open func() catalog.Catalog) {
	c := open()
	put(t, c, 1000, false)
	var wg sync.WaitGroup
	run := func(f func() error) {
		wg.Go(func() {
			for range 200 {
				if err := f(); err != nil {
					if !errors.Is(err, catalog.ErrClosed) {
						t.Errorf("concurrent call: %v", err)
					}
					return
				}
			}
		})
	}
	for i := range 2 {
		run(func() error {
			var b catalog.Batch
			b.Put(&catalog.Record{Tenant: fmt.Sprint(i), Key: "k"})
			return c.Apply(&b, i == 0)
		})
		run(func() error { return c.Scan(t.Context(), func(*catalog.Record) error { return nil }) })
		run(func() error { _, _, err := c.Get("", "key 000001"); return err })
		run(func() error { _, _, err := c.Meta("m"); return err })
	}
	for range 50 {
		_, _, err := c.Meta("m")
		require.NoError(t, err)
	}
	require.NoError(t, c.Close())
	wg.Wait()
}

// model compares with a map through random batches and reopenings.
func model(t *testing.T, open func() catalog.Catalog) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	c := open()
	want := map[[2]string]catalog.Record{}
	for range 60 {
		var b catalog.Batch
		for range rng.IntN(200) {
			name := [2]string{fmt.Sprint(rng.IntN(3)), fmt.Sprint(rng.IntN(300))}
			if rng.IntN(3) == 0 {
				b.Delete(name[0], name[1])
				delete(want, name)
			} else {
				r := Random(rng, name[0], name[1])
				b.Put(&r)
				want[name] = r
			}
		}
		require.NoError(t, c.Apply(&b, rng.IntN(4) == 0))
		if rng.IntN(10) == 0 {
			require.NoError(t, c.Close())
			c = open()
		}
		if rng.IntN(5) == 0 {
			require.Equal(t, want, All(t, c), "seed %d", seed)
		}
	}
	require.Equal(t, want, All(t, c), "seed %d", seed)
}
