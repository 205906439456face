package ssd_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd/ssdtest"
)

const chunk = 64 << 10

var ctx = context.Background()

// object is what a test stored.
type object struct {
	head ssd.Head
	data []byte
	loc  ssd.Loc
}

func (o *object) item() ssd.Item {
	it := ssd.Item{Head: o.head}
	for rest := o.data; len(rest) > 0; {
		n := min(len(rest), 1+len(o.data)/3)
		it.Data = append(it.Data, rest[:n])
		rest = rest[n:]
	}
	return it
}

func newObject(rng *rand.Rand, key string, size int) *object {
	o := &object{data: make([]byte, size)}
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], rng.Uint64())
	_, _ = rand.NewChaCha8(seed).Read(o.data)
	o.head = headOf(key, o.data)
	return o
}

func headOf(key string, data []byte) ssd.Head {
	h := ssd.Head{Key: []byte(key), Size: int64(len(data)), Gen: 3, Type: 1}
	var enc []byte
	for c := range slices.Chunk(data, chunk) {
		h.Table = append(h.Table, xxhash.Sum64(c))
		enc = binary.LittleEndian.AppendUint64(enc, xxhash.Sum64(c))
	}
	h.Digest = xxhash.Sum64(enc)
	if len(h.Table) == 1 {
		h.Digest = h.Table[0]
	}
	return h
}

func newRand(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func open(t testing.TB, fs ssd.FS, dir string, opts ssd.Options) *ssd.Tier {
	t.Helper()
	tier, err := ssd.Open(fs, dir, opts)
	ssdtest.NoError(t, err)
	t.Cleanup(func() { ssdtest.NoError(t, tier.Close()) })
	return tier
}

// add appends objects in one batch.
func add(tier *ssd.Tier, objects ...*object) error {
	items := make([]ssd.Item, len(objects))
	for i, o := range objects {
		items[i] = o.item()
	}
	locs, err := tier.Append(ctx, items)
	if err != nil {
		return err
	}
	for i, o := range objects {
		o.loc = locs[i]
	}
	return nil
}

// addOwn stores an object in a file of its own.
func addOwn(tier *ssd.Tier, o *object) (err error) {
	w, err := tier.CreateOwn(o.head.Size)
	if err != nil {
		return err
	}
	defer w.Abort()
	for p := range slices.Chunk(o.data, 1<<20|77) {
		if _, err := w.Write(p); err != nil {
			return err
		}
	}
	if err := w.Finish(ctx); err != nil {
		return err
	}
	if o.loc, err = tier.AppendHead(ctx, o.head, w.ID()); err != nil {
		tier.Free(ssd.Loc{Own: w.ID()}, 0, 0)
	}
	return err
}

func free(tier *ssd.Tier, o *object) { tier.Free(o.loc, len(o.head.Key), o.head.Size) }

// verify reads all of o, verified.
func verify(tier *ssd.Tier, o *object) error {
	if o.loc.Own == 0 && o.head.Size <= ssd.SmallBytes {
		small := make([]byte, o.head.Size)
		err := tier.ReadSmall(ctx, o.loc, len(o.head.Key), o.head.Digest, small)
		if err == nil && !bytes.Equal(small, o.data) {
			panic(fmt.Sprintf("WRONG BYTES of %q at %v from ReadSmall", o.head.Key, o.loc))
		}
	}
	h, err := tier.ReadHead(ctx, o.loc, o.head.Key, o.head.Size)
	if err != nil {
		return err
	}
	dst := make([]byte, h.Size)
	if err := tier.Read(ctx, o.loc, &h, 0, dst); err != nil {
		return err
	}
	if !bytes.Equal(dst, o.data) || !slices.Equal(h.Table, o.head.Table) || h.Gen != o.head.Gen || h.Type != o.head.Type {
		panic(fmt.Sprintf("WRONG BYTES of %q at %v", o.head.Key, o.loc))
	}
	return nil
}

func live(objects ...*object) iter.Seq2[ssd.Loc, ssd.RecordSize] {
	return func(yield func(ssd.Loc, ssd.RecordSize) bool) {
		for _, o := range objects {
			if !yield(o.loc, ssd.RecordSize{KeyLen: len(o.head.Key), Size: o.head.Size}) {
				return
			}
		}
	}
}

func wantUsage(t *testing.T, tier *ssd.Tier, containers, owns int) ssd.Usage {
	t.Helper()
	u := tier.Usage()
	if u.Containers != containers || u.OwnFiles != owns {
		t.Fatalf("Usage = %+v, want %d containers and %d own files", u, containers, owns)
	}
	return u
}

// fileSystems are the layers that tests run on.
func fileSystems(t *testing.T, run func(t *testing.T, fs ssd.FS, dir string)) {
	layers := map[string]func() (ssd.FS, string){
		"os":    func() (ssd.FS, string) { return ssd.OSFS{}, filepath.Join(t.TempDir(), "tier") },
		"fault": func() (ssd.FS, string) { return new(ssdtest.FaultFS), "/tier" },
	}
	for _, name := range slices.Sorted(maps.Keys(layers)) {
		fs, dir := layers[name]()
		t.Run(name, func(t *testing.T) { run(t, fs, dir) })
	}
}

func TestFileSystems(t *testing.T) {
	fileSystems(t, func(t *testing.T, fs ssd.FS, dir string) { ssdtest.TestFS(t, fs, dir) })
}

var sizes = []int{
	0, 1, 63, 64, 65, 511, 512, 513, 4095, 4096, 4097, 65535, 65536, 65537, 1<<20 - 1, 1 << 20, 1<<20 + 1, 4<<20 + 5, 20 << 20,
}

// TestRoundTrip stores all sizes, one by one, in one batch and in own files, and reads them before and after a restart.
func TestRoundTrip(t *testing.T) {
	fileSystems(t, func(t *testing.T, fs ssd.FS, dir string) {
		rng := newRand(t)
		// Containers of 16 MiB: the last size has one to itself.
		opts := ssd.Options{ContainerBytes: 16 << 20, BatchBytes: 1 << 20}
		tier := open(t, fs, dir, opts)
		var all, batch []*object
		for i, size := range sizes {
			o := newObject(rng, fmt.Sprintf("single/%d", i), size)
			ssdtest.NoError(t, add(tier, o))
			own := newObject(rng, fmt.Sprintf("own/%d", i), size)
			ssdtest.NoError(t, addOwn(tier, own))
			batch = append(batch, newObject(rng, fmt.Sprintf("batch/%d", i), size))
			all = append(all, o, own)
		}
		ssdtest.NoError(t, add(tier, batch...))
		all = append(all, batch...)
		ssdtest.NoError(t, tier.Sync(ctx))
		for _, o := range all {
			ssdtest.NoError(t, verify(tier, o))
		}
		before := tier.Usage()
		ssdtest.NoError(t, tier.Close())

		tier = open(t, fs, dir, opts)
		ssdtest.NoError(t, tier.Recover(live(all...)))
		for _, o := range all {
			ssdtest.NoError(t, verify(tier, o))
			if o.loc.Own != 0 {
				size, mtime, err := tier.OwnStamp(o.loc.Own)
				ssdtest.NoError(t, err)
				info, err := fs.Stat(tier.OwnPath(o.loc.Own))
				ssdtest.NoError(t, err)
				if size != o.head.Size || mtime != info.MtimeNs || info.Mode != 0o400 {
					t.Fatalf("OwnStamp = %d, %d, file is %+v", size, mtime, info)
				}
			}
		}
		after := tier.Usage()
		if after.LiveBytes != before.LiveBytes || after.DiskBytes > before.DiskBytes || after.NextFile < before.NextFile {
			t.Fatalf("Usage %+v after a restart, %+v before", after, before)
		}
		for _, o := range all {
			free(tier, o)
		}
		if u := wantUsage(t, tier, 0, 0); u.LiveBytes != 0 || u.DiskBytes != 0 {
			t.Fatalf("Usage = %+v, want nothing", u)
		}
	})
}

func TestRanges(t *testing.T) {
	fileSystems(t, func(t *testing.T, fs ssd.FS, dir string) {
		rng := newRand(t)
		tier := open(t, fs, dir, ssd.Options{})
		big := newObject(rng, "big", 5<<20+321)
		small := newObject(rng, "small", 60000)
		own := newObject(rng, "own", 3<<20+4097)
		ssdtest.NoError(t, add(tier, small, big))
		ssdtest.NoError(t, addOwn(tier, own))
		memory := ssdtest.Blocks(t, 6<<20/4096)
		for i := range 300 {
			o := []*object{big, small, own}[i%3]
			edge := func() int64 {
				n := rng.Int64N(o.head.Size + 1)
				if rng.IntN(2) == 0 {
					n = n/chunk*chunk + rng.Int64N(3) - 1
				}
				return max(0, min(n, o.head.Size))
			}
			from, to := edge(), edge()
			if from > to {
				from, to = to, from
			}
			dst := memory[:to-from]
			if i%4 == 0 {
				dst = memory[13:][:to-from]
			}
			noTable := o.head
			noTable.Table = nil
			for j, h := range []*ssd.Head{&o.head, &noTable, nil} {
				clear(dst)
				ssdtest.NoError(t, tier.Read(ctx, o.loc, h, from, dst))
				if !bytes.Equal(dst, o.data[from:to]) {
					t.Fatalf("Read of [%d, %d) of %s, form %d: wrong bytes", from, to, o.head.Key, j)
				}
			}
		}
		for _, r := range [][2]int64{{-1, 1}, {small.head.Size, 1}, {0, small.head.Size + 1}, {1 << 62, 1}} {
			err := tier.Read(ctx, small.loc, &small.head, r[0], memory[:r[1]])
			ssdtest.ErrorIs(t, err, ssd.ErrInvalid)
		}
	})
}

// TestLongHead has a table that does not fit a staging buffer.
func TestLongHead(t *testing.T) {
	fs := new(ssdtest.FaultFS)
	tier := open(t, fs, "/tier", ssd.Options{BatchBytes: 1 << 20})
	rng := newRand(t)
	table := make([]byte, 300_000*8)
	h := ssd.Head{Key: []byte("a large file"), Size: 300_000*chunk - 5, Table: make([]uint64, 300_000)}
	for i := range h.Table {
		h.Table[i] = rng.Uint64()
		binary.LittleEndian.PutUint64(table[8*i:], h.Table[i])
	}
	h.Digest = xxhash.Sum64(table)
	ssdtest.NoError(t, add(tier, newObject(rng, "before", 100)))
	loc, err := tier.AppendHead(ctx, h, 77)
	ssdtest.NoError(t, err)
	got, err := tier.ReadHead(ctx, loc, h.Key, h.Size)
	ssdtest.NoError(t, err)
	if !slices.Equal(got.Table, h.Table) {
		t.Fatal("ReadHead: another table")
	}
	fs.Resize(fmt.Sprintf("/tier/%08x.log", loc.File), 2<<20)
	_, err = tier.ReadHead(ctx, loc, h.Key, h.Size)
	ssdtest.ErrorIs(t, err, ssd.ErrTruncated)
	tier.Free(loc, len(h.Key), h.Size)
}

func TestInvalid(t *testing.T) {
	fs := new(ssdtest.FaultFS)
	_, err := ssd.Open(fs, "/tier", ssd.Options{ContainerBytes: 5, BatchBytes: -1, QuotaBytes: -1, OwnWriters: -1})
	ssdtest.ErrorIs(t, err, ssd.ErrInvalid)
	tier := open(t, fs, "/tier", ssd.Options{OwnWriters: 1})
	rng := newRand(t)
	good := newObject(rng, "k", 100)
	for name, change := range map[string]func(*ssd.Item){
		"size":     func(it *ssd.Item) { it.Head.Size++ },
		"negative": func(it *ssd.Item) { it.Head.Size = -1 },
		"table":    func(it *ssd.Item) { it.Head.Table = nil },
		"digest":   func(it *ssd.Item) { it.Head.Digest++ },
		"key":      func(it *ssd.Item) { it.Head.Key = make([]byte, ssd.MaxKeyBytes+1) },
	} {
		bad := good.item()
		change(&bad)
		if _, err := tier.Append(ctx, []ssd.Item{good.item(), bad}); !errors.Is(err, ssd.ErrInvalid) {
			t.Errorf("Append with a wrong %s: %v, want ErrInvalid", name, err)
		}
	}
	if u := tier.Usage(); u.LiveBytes != 0 || u.DiskBytes != 0 {
		t.Fatalf("Usage = %+v, want nothing", u)
	}
	ssdtest.NoError(t, add(tier, good))
	_, err = tier.AppendHead(ctx, good.head, 0)
	ssdtest.ErrorIs(t, err, ssd.ErrInvalid)

	w, err := tier.CreateOwn(10)
	ssdtest.NoError(t, err)
	_, err = tier.CreateOwn(10)
	ssdtest.ErrorIs(t, err, ssd.ErrTooManyWriters)
	_, err = w.Write(make([]byte, 11))
	ssdtest.ErrorIs(t, err, ssd.ErrInvalid)
	ssdtest.ErrorIs(t, w.Finish(ctx), ssd.ErrInvalid)
	ssdtest.NoError(t, tier.Close())
	ssdtest.NoError(t, tier.Close())
	_, err = w.Write(nil)
	ssdtest.ErrorIs(t, err, ssd.ErrClosed)
	ssdtest.ErrorIs(t, w.Finish(ctx), ssd.ErrClosed)
	ssdtest.ErrorIs(t, add(tier, good), ssd.ErrClosed)
	ssdtest.ErrorIs(t, verify(tier, good), ssd.ErrClosed)
	ssdtest.ErrorIs(t, tier.Sync(ctx), ssd.ErrClosed)
	_, err = tier.CreateOwn(1)
	ssdtest.ErrorIs(t, err, ssd.ErrClosed)
	free(tier, good)
}

func TestCancelled(t *testing.T) {
	fs := new(ssdtest.FaultFS)
	tier := open(t, fs, "/tier", ssd.Options{})
	o := newObject(newRand(t), "k", 3<<20)
	ssdtest.NoError(t, add(tier, o))
	done, cancel := context.WithCancel(ctx)
	cancel()
	_, err := tier.Append(done, []ssd.Item{o.item()})
	ssdtest.ErrorIs(t, err, context.Canceled)
	ssdtest.ErrorIs(t, tier.Read(done, o.loc, &o.head, 0, make([]byte, 3<<20)), context.Canceled)
	if err := tier.Sync(done); err != nil {
		ssdtest.ErrorIs(t, err, context.Canceled)
	}
	ssdtest.NoError(t, add(tier, newObject(newRand(t), "l", 100)))
	ssdtest.NoError(t, verify(tier, o))
	wantUsage(t, tier, 1, 0)
}

// TestForeign opens directories of another store, and of a newer version.
func TestForeign(t *testing.T) {
	fs := new(ssdtest.FaultFS)
	mine := ssd.Options{StoreID: [16]byte{1}}
	tier := open(t, fs, "/tier", mine)
	o := newObject(newRand(t), "k", 100)
	ssdtest.NoError(t, add(tier, o))
	ssdtest.NoError(t, tier.Close())
	_, err := ssd.Open(fs, "/tier", ssd.Options{StoreID: [16]byte{2}})
	ssdtest.ErrorIs(t, err, ssd.ErrForeign)
	fs.Corrupt("/tier/TIER", 30, func(b byte) byte { return b ^ 1 })
	_, err = ssd.Open(fs, "/tier", mine)
	ssdtest.ErrorIs(t, err, ssd.ErrCorrupt)
	ssdtest.NoError(t, fs.Remove("/tier/TIER"))
	other := open(t, fs, "/tier", ssd.Options{StoreID: [16]byte{2}})
	ssdtest.ErrorIs(t, other.Recover(live(o)), ssd.ErrForeign)
	ssdtest.NoError(t, verify(other, o))
}

func TestReadSmall(t *testing.T) {
	fileSystems(t, func(t *testing.T, fs ssd.FS, dir string) {
		tier := open(t, fs, dir, ssd.Options{})
		rng := newRand(t)
		for _, size := range []int{1, 100, 4096, 64 << 10, 64<<10 + 1, ssd.SmallBytes} {
			o := newObject(rng, fmt.Sprint("small/", size), size)
			ssdtest.NoError(t, add(tier, o))
			dst := make([]byte, size)
			ssdtest.NoError(t, tier.ReadSmall(ctx, o.loc, len(o.head.Key), o.head.Digest, dst))
			if !bytes.Equal(dst, o.data) {
				t.Fatalf("ReadSmall of %d bytes: wrong bytes", size)
			}
			ssdtest.ErrorIs(t, tier.ReadSmall(ctx, o.loc, len(o.head.Key), o.head.Digest+1, dst), ssd.ErrCorrupt)
		}
		big := newObject(rng, "big", ssd.SmallBytes+1)
		ssdtest.NoError(t, add(tier, big))
		ssdtest.ErrorIs(t, tier.ReadSmall(ctx, big.loc, len(big.head.Key), big.head.Digest, make([]byte, ssd.SmallBytes+1)), ssd.ErrInvalid)
	})
}
