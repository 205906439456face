package store

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/master"
)

// replica reads one replica of an object, verified, without quarantine, so that a test can go on.
type replica struct {
	t    *testing.T
	r    reading
	want []byte
}

func openReplica(t *testing.T, s *Store, key string, want []byte) *replica {
	t.Helper()
	r, err := s.acquire(key, &ReadOptions{Verify: VerifyAlways})
	require.NoError(t, err)
	t.Cleanup(r.release)
	return &replica{t, r, want}
}

// detects checks that a read finds what was changed: it fails, or what it returns is right.
func (x *replica) detects(tier Tier, must bool, what string, at int) {
	dst := make([]byte, len(x.want))
	read := x.r.readMemory
	if tier == TierSSD {
		read = x.r.readSSD
	}
	err := read(context.Background(), dst, 0)
	if err == nil && (must || !bytes.Equal(dst, x.want)) {
		x.t.Fatalf("%s: bit %d flipped, read without an error", what, at)
	}
	if err != nil && !isLost(err) {
		x.t.Fatalf("%s: bit %d flipped: %v", what, at, err)
	}
}

// flipBits flips each bit of memory once, or with few one of each byte.
func (x *replica) flipBits(p []byte, few bool, what string) {
	for i := range 8 * len(p) {
		if few && i%8 != i/8%8 {
			continue
		}
		p[i/8] ^= 1 << (i % 8)
		x.detects(TierMemory, true, what, i)
		p[i/8] ^= 1 << (i % 8)
	}
	x.r.verify = VerifyAlways
	require.NoError(x.t, x.r.readMemory(context.Background(), make([]byte, len(x.want)), 0))
}

// flipFile does the same to n bytes of a file from off.
func (x *replica) flipFile(path string, off, n int64, tier Tier, must, few bool) {
	require.NoError(x.t, os.Chmod(path, 0o600))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(x.t, err)
	defer f.Close()
	p := make([]byte, n)
	_, err = f.ReadAt(p, off)
	require.NoError(x.t, err)
	for i := range 8 * int(n) {
		if few && i%8 != i/8%8 {
			continue
		}
		_, err = f.WriteAt([]byte{p[i/8] ^ 1<<(i%8)}, off+int64(i/8))
		require.NoError(x.t, err)
		x.detects(tier, must, path, i)
		_, err = f.WriteAt(p[i/8:i/8+1], off+int64(i/8))
		require.NoError(x.t, err)
	}
}

func TestEveryBitFlipIsDetected(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	s := openTest(t, Options{Dir: dir, FileBytes: 4096})
	t.Run("memory", func(t *testing.T) {
		for _, n := range []int{1, 100, 512} {
			key := fmt.Sprint("small", n)
			require.NoError(t, s.Put(ctx, key, random(n), nil))
			x := openReplica(t, s, key, random(n))
			x.flipBits(s.pieces(&x.r.o, nil)[0], false, key)
		}
	})
	t.Run("memory, chunks and their table", func(t *testing.T) {
		require.NoError(t, s.Put(ctx, "chunks", random(70_000), nil))
		x := openReplica(t, s, "chunks", random(70_000))
		p := s.pieces(&x.r.o, nil)[0]
		for _, part := range [][]byte{p[:32], p[65520:65552], p[69_990:]} {
			x.flipBits(part, false, "chunks")
		}
		e, ok := x.r.o.Table()
		require.True(t, ok)
		x.flipBits(s.bytes(e)[:16], false, "table")
	})
	t.Run("memory file", func(t *testing.T) {
		require.NoError(t, s.Put(ctx, "own", random(4096), &PutOptions{OwnFile: true}))
		x := openReplica(t, s, "own", random(4096))
		require.NotZero(t, x.r.o.Flags&master.FlagOwnMemory)
		x.flipFile(filePath(s.own.get(uint64(x.r.o.Extents()[0].Off))), 0, 4096, TierMemory, true, true)
	})
	t.Run("ssd container", func(t *testing.T) {
		const n = 200
		require.NoError(t, s.Put(ctx, "durable", random(n), &PutOptions{Durable: true}))
		x := openReplica(t, s, "durable", random(n))
		require.Zero(t, x.r.o.SSD.Own)
		path := filepath.Join(dir, tierDir, fmt.Sprintf("%08x.log", x.r.o.SSD.File))
		off, head := int64(x.r.o.SSD.Off)*64, int64(64+x.r.o.SSDKeyLen+8)
		x.flipFile(path, off, head, TierSSD, true, false)
		data := (head + 63) / 64 * 64
		x.flipFile(path, off+data, n, TierSSD, true, false)
		x.flipFile(path, off+head, data-head, TierSSD, false, false) // padding means nothing
	})
	t.Run("ssd file", func(t *testing.T) {
		w, err := s.Create(ctx, "durable own", 5000, &PutOptions{Durable: true, OwnFile: true})
		require.NoError(t, err)
		_, err = w.Write(random(5000))
		require.NoError(t, err)
		require.NoError(t, w.Commit(ctx))
		x := openReplica(t, s, "durable own", random(5000))
		require.NotZero(t, x.r.o.SSD.Own)
		x.flipFile(s.tier.OwnPath(x.r.o.SSD.Own), 0, 5000, TierSSD, true, true)
	})
}

// readers are all the ways to read an object.
var readers = map[string]func(s *Store, key string, size int) ([]byte, error){
	"Get": func(s *Store, key string, size int) ([]byte, error) {
		return s.Get(context.Background(), key, &ReadOptions{Verify: VerifyAlways})
	},
	"GetInto": func(s *Store, key string, size int) ([]byte, error) {
		p := make([]byte, size+1)
		n, err := s.GetInto(context.Background(), key, p, &ReadOptions{Verify: VerifyAlways})
		return p[:n], err
	},
	"GetRanges": func(s *Store, key string, size int) ([]byte, error) {
		p := make([]byte, size)
		reads := []RangeRead{{Key: key, Fragments: []Fragment{{100, p[100:]}, {0, p[:100]}}}}
		if err := s.GetRanges(context.Background(), reads, &ReadOptions{Verify: VerifyAlways}); err != nil {
			return nil, err
		}
		return p, reads[0].Err
	},
	"GetBatch": func(s *Store, key string, size int) ([]byte, error) {
		p := make([]byte, size)
		items := []GetItem{{Key: key, Dst: [][]byte{p[:77], p[77:]}}}
		s.GetBatch(context.Background(), items, &ReadOptions{Verify: VerifyAlways})
		return p, items[0].Err
	},
	"View": func(s *Store, key string, size int) ([]byte, error) {
		v, err := s.View(context.Background(), key, &ReadOptions{Verify: VerifyAlways})
		if err != nil {
			return nil, err
		}
		return bytes.Join(v.Segments(), nil), v.Close()
	},
	"File": func(s *Store, key string, size int) ([]byte, error) {
		f, err := s.File(context.Background(), key, &ReadOptions{Verify: VerifyAlways})
		if err != nil {
			return nil, err
		}
		p, err := os.ReadFile(f.Path())
		if e := f.Close(); err == nil {
			err = e
		}
		return p, err
	},
}

// A bad replica is quarantined, the next one read; when none is left the error says so, and the key is free.
func TestBadReplicaGivesWayToTheNext(t *testing.T) {
	const n = 80_000
	for name, read := range readers {
		for _, own := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", own file ", own), func(t *testing.T) {
				ctx := context.Background()
				dir := t.TempDir()
				s := openTest(t, Options{Dir: dir, MemoryBytes: 16 << 20, FileBytes: 4096, PromoteAfter: -1})
				events, cancel := s.Events(100)
				defer cancel()
				require.NoError(t, s.Put(ctx, "k", random(n), &PutOptions{OwnFile: own}))
				require.NoError(t, s.Sync(ctx))
				r, err := s.acquire("k", nil)
				require.NoError(t, err)
				o := r.o
				r.release()
				require.True(t, o.InMemory() && o.OnSSD())
				if own {
					flipInFile(t, filePath(s.own.get(uint64(o.Extents()[0].Off))), random(n)[70_000:70_010], 1)
				} else {
					s.pieces(&o, nil)[0][70_001] ^= 4
				}
				got, err := read(s, "k", n)
				require.NoError(t, err)
				require.True(t, bytes.Equal(random(n), got), "from the next replica")
				log := s.Explain("k")
				require.Len(t, log, 1)
				require.Equal(t, Quarantined, log[0].What)
				require.Equal(t, TierMemory, log[0].Tier)
				require.EqualValues(t, 1, s.Counters().Quarantined)
				info, err := s.Stat("k")
				require.NoError(t, err)
				require.False(t, info.InMemory)
				require.True(t, info.OnSSD)

				path := filepath.Join(dir, tierDir, fmt.Sprintf("%08x.log", o.SSD.File))
				if o.SSD.Own != 0 {
					path = s.tier.OwnPath(o.SSD.Own)
				}
				flipInFile(t, path, random(n)[70_000:70_010], 1)
				_, err = read(s, "k", n)
				require.ErrorIs(t, err, ErrChecksum)
				_, err = read(s, "k", n)
				require.ErrorIs(t, err, ErrNoReplica)
				ok, err := s.Exists("k")
				require.NoError(t, err)
				require.False(t, ok, "what can't be read does not exist")
				kinds := map[EventKind]int{}
				for len(events) > 0 {
					kinds[(<-events).Kind]++
				}
				require.Equal(t, 1, kinds[EventPut])
				require.Equal(t, 2, kinds[EventQuarantined])
				require.NoError(t, s.Put(ctx, "k", random(500), nil))
				requireBytes(t, s, "k", random(500))
				requireEmptied(t, s)
			})
		}
	}
}

// Files of the SSD tier that were cut or are gone cost their objects and nothing else.
func TestCutAndMissingSSDFiles(t *testing.T) {
	ctx := context.Background()
	for _, harm := range []string{"cut", "missing"} {
		for _, open := range []bool{false, true} {
			t.Run(fmt.Sprint(harm, ", while open ", open), func(t *testing.T) {
				opts := testOptions(t, Options{Dir: t.TempDir(), MemoryBytes: 16 << 20, FileBytes: 4096, PromoteAfter: -1})
				s, err := Open(ctx, opts)
				require.NoError(t, err)
				require.NoError(t, s.PutFrom(ctx, "own", bytes.NewBuffer(random(100_000)), 100_000, &PutOptions{Durable: true, OwnFile: true}))
				for i := range 100 {
					require.NoError(t, s.Put(ctx, fmt.Sprint(i), random(3000+i), nil))
				}
				require.NoError(t, s.Sync(ctx))
				if !open {
					require.NoError(t, s.Close())
					loseMemory(t, opts)
				}
				paths, err := filepath.Glob(filepath.Join(opts.Dir, tierDir, "*.*"))
				require.NoError(t, err)
				require.Len(t, paths, 2)
				for _, path := range paths {
					if harm == "missing" {
						require.NoError(t, os.Remove(path))
						continue
					}
					require.NoError(t, os.Chmod(path, 0o600))
					require.NoError(t, os.Truncate(path, 50_000))
				}
				if !open {
					s, err = Open(ctx, opts)
					require.NoError(t, err)
				}
				bad := 0
				for i := -1; i < 100; i++ {
					key, n := fmt.Sprint(i), 3000+i
					if i < 0 {
						key, n = "own", 100_000
					}
					got, err := s.Get(ctx, key, nil)
					if err == nil {
						require.True(t, bytes.Equal(random(n), got), key)
						continue
					}
					bad++
					require.ErrorContains(t, err, key)
					_, err = s.Get(ctx, key, nil)
					require.ErrorIs(t, err, ErrNoReplica)
					require.False(t, probe(t, s, key), "%s can't be read", key)
					require.NotEmpty(t, s.Explain(key))
				}
				if !open {
					require.Positive(t, bad)
				}
				require.NoError(t, s.Put(ctx, "new", random(5000), &PutOptions{Durable: true}))
				requireBytes(t, s, "new", random(5000))
				require.NoError(t, s.Close())
				s, err = Open(ctx, opts)
				require.NoError(t, err)
				requireBytes(t, s, "new", random(5000))
				require.NoError(t, s.Close())
			})
		}
	}
}

// Who writes through a path that File handed out is found out; a hard link outlives the key.
func TestFileTampering(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	for _, durable := range []bool{false, true} {
		t.Run(fmt.Sprint("durable ", durable), func(t *testing.T) {
			s := openTest(t, Options{Dir: filepath.Join(dir, fmt.Sprint(durable)), MemoryBytes: 32 << 20})
			const n = 1 << 20
			put := func(key string) *File {
				require.NoError(t, s.PutFrom(ctx, key, bytes.NewBuffer(random(n)), n, &PutOptions{Type: Weight, Durable: durable}))
				f, err := s.File(ctx, key, nil)
				require.NoError(t, err)
				require.Equal(t, durable, f.Tier() == TierSSD)
				require.False(t, f.Temporary())
				return f
			}
			for how, harm := range map[string]func(path string) error{
				"written": func(path string) error {
					f, err := os.OpenFile(path, os.O_WRONLY, 0)
					require.NoError(t, err)
					_, err = f.WriteAt([]byte{0}, 5)
					require.NoError(t, f.Close())
					return err
				},
				"longer": func(path string) error { return os.Truncate(path, n+1) },
				"replaced": func(path string) error {
					require.NoError(t, os.WriteFile(path+"x", random(n), 0o444))
					return os.Rename(path+"x", path)
				},
				"gone": os.Remove,
			} {
				f := put(how)
				require.NoError(t, os.Chmod(f.Path(), 0o600))
				require.NoError(t, harm(f.Path()))
				err := f.Close()
				require.ErrorIs(t, err, ErrTampered, how)
				_, err = s.File(ctx, how, nil)
				require.ErrorIs(t, err, ErrNoReplica, how)
				log := s.Explain(how)
				require.NotEmpty(t, log, how)
				require.Equal(t, Quarantined, log[0].What)
				require.NoError(t, s.Remove(how, true))
			}
			f := put("between") // harm while nobody has it
			require.NoError(t, f.Close())
			require.NoError(t, os.Chmod(f.Path(), 0o600))
			require.NoError(t, os.Chtimes(f.Path(), fakeTime, fakeTime))
			_, err := s.File(ctx, "between", nil)
			require.ErrorIs(t, err, ErrTampered)

			f = put("linked")
			link := f.Path() + ".link"
			require.NoError(t, os.Link(f.Path(), link))
			require.NoError(t, f.Close())
			require.NoError(t, s.Remove("linked", true))
			require.NoError(t, s.Put(ctx, "other", random(n/2), &PutOptions{Type: Weight}))
			got, err := os.ReadFile(link)
			require.NoError(t, err)
			require.True(t, bytes.Equal(random(n), got))
			require.NoError(t, os.Remove(link))
			requireEmptied(t, s)
		})
	}
}
