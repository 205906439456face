//go:build cgo && !norocksdb

package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/pkg/errors"
	"github.com/stretchr/testify/require"
)

// TestDamageAnywhere damages one file of a directory after another, each at a random place: a flipped bit, a zeroed page, a cut,
// the loss of the file. An open that succeeds has every durable object, whose bytes are right or an error; one that does not
// says what is damaged, and loses nothing: with the file back all is there. Replay with -crash-seed.
func TestDamageAnywhere(t *testing.T) {
	seed := *crashSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 5))
	ctx := context.Background()
	opts := crashDir(t, 0)
	for pass := range 3 { // a table, and a log
		s, err := Open(ctx, opts)
		require.NoError(t, err)
		for i := range 20 {
			require.NoError(t, s.Put(ctx, fmt.Sprint("d", pass, "-", i), random(6000+i), &PutOptions{Durable: true, HardPin: true}))
			require.NoError(t, s.Put(ctx, fmt.Sprint("c", pass, "-", i), random(3000+i), nil))
		}
		own := &PutOptions{Durable: true, HardPin: true, Type: Weight}
		require.NoError(t, s.Put(ctx, fmt.Sprint("own", pass), random(int(opts.FileBytes)+pass), own))
		require.NoError(t, s.Close())
	}
	var files []string
	require.NoError(t, filepath.WalkDir(opts.Dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			rel, _ := filepath.Rel(opts.Dir, path)
			files = append(files, rel)
		}
		return err
	}))
	rounds := 5 * len(files)
	if testing.Short() {
		rounds = len(files)
	}
	opened, refused := 0, 0
	for round := range rounds {
		copied := opts
		copied.Dir, copied.ShmDir = filepath.Join(t.TempDir(), "copy"), crashShmDir(t)
		require.NoError(t, os.CopyFS(copied.Dir, os.DirFS(opts.Dir)))
		name := files[round%len(files)]
		what := damage(t, rng, filepath.Join(copied.Dir, name))
		s, err := Open(ctx, copied)
		if err != nil {
			require.True(t, errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNewerFormat), "seed %d round %d: %s %s: %v", seed, round, name, what, err)
			repaired := copied
			repaired.Dir, repaired.ShmDir, repaired.Repair = filepath.Join(t.TempDir(), "repaired"), crashShmDir(t), true
			require.NoError(t, os.CopyFS(repaired.Dir, os.DirFS(copied.Dir)))
			checkRepaired(t, repaired, name+" "+what)
			p, err := os.ReadFile(filepath.Join(opts.Dir, name))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(copied.Dir, name), p, 0o600))
			s, err = Open(ctx, copied)
			require.NoError(t, err, "seed %d round %d: %s was %s and is back", seed, round, name, what)
			refused++
		} else {
			opened++
		}
		for pass := range 3 {
			for i := range 20 {
				wantWholeOrError(t, s, fmt.Sprint("d", pass, "-", i), random(6000+i), name+" "+what)
			}
			wantWholeOrError(t, s, fmt.Sprint("own", pass), random(int(opts.FileBytes)+pass), name+" "+what)
		}
		require.NoError(t, s.Close())
		require.NoError(t, os.RemoveAll(copied.Dir))
	}
	t.Logf("%d opened, %d refused", opened, refused)
	require.Positive(t, opened)
	require.Positive(t, refused)
}

// checkRepaired opens a directory that was refused. Nothing of the SSD tier's data is damaged, so all objects are back.
func checkRepaired(t *testing.T, opts Options, what string) {
	t.Helper()
	for range 2 {
		s, err := Open(context.Background(), opts)
		require.NoError(t, err, what)
		for pass := range 3 {
			for i := range 20 {
				wantWhole(t, s, fmt.Sprint("d", pass, "-", i), random(6000+i))
			}
			wantWhole(t, s, fmt.Sprint("own", pass), random(int(opts.FileBytes)+pass))
		}
		if r := s.RepairReport(); opts.Repair && r.Damage != nil {
			require.ErrorIs(t, r.Damage, ErrCorrupt)
			require.DirExists(t, r.Backup)
			for _, o := range r.Adopted {
				info, err := s.Stat(o.Key)
				require.NoError(t, err)
				require.Equal(t, o.Type != KVCache, info.HardPin, "%+v", o)
			}
		}
		require.NoError(t, s.Close())
		opts.Repair = false // it is an ordinary directory from now on
	}
}

func damage(t *testing.T, rng *rand.Rand, path string) string {
	t.Helper()
	p, err := os.ReadFile(path)
	require.NoError(t, err)
	at, what := rng.IntN(max(1, len(p))), ""
	switch kind := rng.IntN(5); {
	case kind == 4:
		require.NoError(t, os.Remove(path))
		return "removed"
	case len(p) == 0:
		return "empty as it was"
	case kind == 0:
		what, p = fmt.Sprint("cut at ", at), p[:at]
	case kind == 1:
		what = fmt.Sprint("zeroed at ", at)
		clear(p[at:min(at+4096, len(p))])
	default:
		what = fmt.Sprint("flipped at ", at)
		p[at] ^= 1 << rng.IntN(8)
	}
	require.NoError(t, os.WriteFile(path, p, 0o600))
	return what
}

// wantWholeOrError fails if the key is gone, or has other bytes.
func wantWholeOrError(t *testing.T, s *Store, key string, want []byte, what string) {
	t.Helper()
	p, err := s.Get(context.Background(), key, nil)
	if err != nil {
		require.NotErrorIs(t, err, ErrNotFound, "%s: %s is lost without a word", what, key)
		return
	}
	require.Equal(t, want, p, "%s: %s", what, key)
}
