//go:build cgo && !norocksdb

package catalog

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/linxGnu/grocksdb"
	"github.com/pkg/errors"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// raw applies entries as they are, behind the back of Batch's checks.
func raw(t testing.TB, dir string, entries map[string]string) {
	t.Helper()
	db, err := openDatabase(dir, how{})
	require.NoError(t, err)
	var b Batch
	for key, value := range entries {
		b.add(batchTagPut, []byte(key), []byte(value))
	}
	require.NoError(t, db.write(b.rep, false))
	require.NoError(t, db.close())
}

// contents maps the files below dir to their bytes.
func contents(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		p, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		files[e.Name()] = string(p)
	}
	return files
}

// setFormat stores a format value in an existing catalogue.
func setFormat(t testing.TB, dir string, value []byte) {
	t.Helper()
	key := AppendMetaKey(nil, formatMeta)
	raw(t, dir, map[string]string{string(key): string(sealMeta(nil, key, value))})
}

func fill(t testing.TB, c Catalog, prefix string, n int) {
	t.Helper()
	var b Batch
	for i := range n {
		r := testRecord()
		r.Key = fmt.Sprintf("%s%06d", prefix, i)
		b.Put(&r)
	}
	require.NoError(t, c.Apply(&b, false))
}

func count(t testing.TB, c Catalog) int {
	t.Helper()
	n := 0
	require.NoError(t, c.Scan(t.Context(), func(*Record) error { n++; return nil }))
	return n
}

func TestNewerFormatIsLeftAlone(t *testing.T) {
	for name, c := range map[string]struct {
		value []byte
		want  error
	}{
		"newer":    {formatValue(FormatVersion + 1), ErrNewerFormat},
		"newest":   {formatValue(1<<32 - 1), ErrNewerFormat},
		"zero":     {formatValue(0), ErrCorrupt},
		"nonsense": {[]byte("x"), ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cat, err := Open(dir)
			require.NoError(t, err)
			fill(t, cat, "k", 100)
			require.NoError(t, cat.Close())
			setFormat(t, dir, c.value)

			before := contents(t, dir)
			for range 2 {
				_, err = Open(dir)
				require.ErrorIs(t, err, c.want)
				require.Equal(t, before, contents(t, dir), "Open of a refused directory wrote to it")
			}
			setFormat(t, dir, formatValue(FormatVersion))
			cat, err = Open(dir)
			require.NoError(t, err)
			require.Equal(t, 100, count(t, cat))
			require.NoError(t, cat.Close())
		})
	}
}

func TestForeignDatabase(t *testing.T) {
	dir := t.TempDir()
	raw(t, dir, map[string]string{"someone": "else's"})
	_, err := Open(dir)
	require.ErrorIs(t, err, ErrCorrupt)
}

func TestOpenOfAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	_, err := Open(file)
	require.ErrorIs(t, err, unix.ENOTDIR)
}

func TestScanSkipsAndNamesBadRecords(t *testing.T) {
	dir := t.TempDir()
	c, err := Open(dir)
	require.NoError(t, err)
	fill(t, c, "k", 10)
	require.NoError(t, c.Close())
	good := testRecord()
	key, value := encode(&good)
	value[5] ^= 1
	newer := AppendKey(nil, "z", "newer", 1)
	raw(t, dir, map[string]string{
		string(key):                        string(value),
		string(AppendKey(nil, "z", "", 0)): "",
		string(newer):                      string(seal(newer, []byte{recordVersion + 1})),
		"o\x01zshort":                      "", // no room for a generation
	})
	c, err = Open(dir)
	require.NoError(t, err)
	defer c.Close()
	n := 0
	err = c.Scan(t.Context(), func(*Record) error { n++; return nil })
	require.Equal(t, 10, n)
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, "4 records")
	_, _, err = c.Get(good.Tenant, good.Key, good.Gen)
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, good.Key)
}

func TestScanRefusesHugeEntries(t *testing.T) {
	dir := t.TempDir()
	c, err := Open(dir)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	raw(t, dir, map[string]string{string(AppendKey(nil, "", "k", 0)): string(make([]byte, scanBuffer))})
	c, err = Open(dir)
	require.NoError(t, err)
	defer c.Close()
	require.ErrorIs(t, c.Scan(t.Context(), func(*Record) error { return nil }), ErrCorrupt)
}

// TestCorruptTable flips bits in the tables that RocksDB wrote: never a wrong record.
func TestCorruptTable(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	c, err := Open(dir)
	require.NoError(t, err)
	fill(t, c, "k", 2000)
	require.NoError(t, c.Close())
	for range 2 { // the log becomes a table at the next Open
		c, err = Open(dir)
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	require.NoError(t, err)
	require.NotEmpty(t, tables)
	for _, name := range tables {
		p, err := os.ReadFile(name)
		require.NoError(t, err)
		for range 40 {
			p[rng.IntN(len(p))] ^= 1 << rng.IntN(8)
		}
		require.NoError(t, os.WriteFile(name, p, 0o644))
	}
	c, err = Open(dir)
	if err != nil {
		require.ErrorIs(t, err, ErrCorrupt)
		return
	}
	defer c.Close()
	err = c.Scan(t.Context(), func(r *Record) error {
		want := testRecord()
		want.Key = r.Key
		require.Equal(t, want, *r)
		return nil
	})
	require.ErrorIs(t, err, ErrCorrupt)
}

// TestBatchEncoding compares with the encoding that RocksDB makes of the same changes.
func TestBatchEncoding(t *testing.T) {
	want := grocksdb.NewWriteBatch()
	defer want.Destroy()
	var b Batch
	r := testRecord()
	for i := range 300 {
		r.Key, r.Gen = fmt.Sprint(i), uint64(i)
		b.Put(&r)
		key, value := encode(&r)
		want.Put(key, value)
	}
	b.Delete("t", "gone", 7)
	want.Delete(AppendKey(nil, "t", "gone", 7))
	require.Equal(t, want.Data(), b.rep)
	require.Equal(t, want.Count(), b.Len())
}

func TestLocked(t *testing.T) {
	dir := t.TempDir()
	c, err := Open(dir)
	require.NoError(t, err)
	_, err = Open(dir)
	require.ErrorIs(t, err, ErrLocked)
	fill(t, c, "k", 1)
	require.NoError(t, c.Close())
	c, err = Open(dir)
	require.NoError(t, err)
	require.Equal(t, 1, count(t, c))
	require.NoError(t, c.Close())
}

// TestFullDisk runs on a file system of its own: reads go on, and writes do again once there is room.
func TestFullDisk(t *testing.T) {
	mount := t.TempDir()
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=12m"); err != nil {
		t.Skipf("mount a small tmpfs: %v", err)
	}
	defer unix.Unmount(mount, unix.MNT_DETACH)
	ballast := filepath.Join(mount, "ballast")
	require.NoError(t, os.WriteFile(ballast, make([]byte, 7<<20), 0o644))
	c, err := Open(filepath.Join(mount, "catalog"))
	require.NoError(t, err)
	defer c.Close()

	var b Batch
	written := 0
	for ; err == nil; written++ {
		b.Reset()
		for i := range 1000 {
			b.Put(&Record{Tenant: fmt.Sprintf("%06d", written), Key: fmt.Sprint(i)})
		}
		err = c.Apply(&b, written%2 == 0)
	}
	written--
	require.ErrorIs(t, err, ErrNoSpace)
	for range 3 {
		require.ErrorIs(t, c.Apply(&b, false), ErrNoSpace)
		require.Contains(t, []int{1000 * written, 1000 * (written + 1)}, count(t, c), "the batch that failed is whole or absent")
	}

	require.NoError(t, os.Remove(ballast))
	boom := errors.New("boom")
	require.Equal(t, boom, c.Scan(t.Context(), func(*Record) error { // the database of a call in progress stays
		require.ErrorIs(t, c.Apply(&b, false), ErrNoSpace)
		return boom
	}))
	require.NoError(t, c.Apply(&b, true))
	require.Equal(t, 1000*(written+1), count(t, c))
	require.NoError(t, c.Close())
	c, err = Open(filepath.Join(mount, "catalog"))
	require.NoError(t, err)
	require.Equal(t, 1000*(written+1), count(t, c))
	require.NoError(t, c.Close())
}

// TestOpenedOften opens and closes without writing: the logs that each open begins don't pile up.
func TestOpenedOften(t *testing.T) {
	dir := t.TempDir()
	for range 40 {
		c, err := Open(dir)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
		require.NoError(t, err)
		require.LessOrEqual(t, len(logs), maxLogs+3)
	}
}
