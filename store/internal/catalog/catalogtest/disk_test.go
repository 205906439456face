package catalogtest

import (
	"testing"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/pkg/errors"
	"github.com/stretchr/testify/require"
)

func TestConformance(t *testing.T) {
	Conformance(t, func(t *testing.T) func() (catalog.Catalog, error) { return new(Disk).Open })
}

func apply(c catalog.Catalog, key string, sync bool) error {
	var b catalog.Batch
	b.Put(&catalog.Record{Key: key})
	return c.Apply(&b, sync)
}

func keys(t *testing.T, c catalog.Catalog) (keys []string) {
	require.NoError(t, c.Scan(t.Context(), func(r *catalog.Record) error {
		keys = append(keys, Clone(r).Key)
		return nil
	}))
	return keys
}

func TestCrash(t *testing.T) {
	for keep, want := range [][]string{{"a", "b"}, {"a", "b", "c"}, {"a", "b", "c", "d"}, {"a", "b", "c", "d"}} {
		var d Disk
		c, err := d.Open()
		require.NoError(t, err)
		require.NoError(t, apply(c, "a", false))
		require.NoError(t, apply(c, "b", true))
		require.NoError(t, apply(c, "c", false))
		require.NoError(t, apply(c, "d", false))
		require.Equal(t, 2, d.Unsynced())
		require.Equal(t, 1, d.Syncs())
		require.Equal(t, []string{"a", "b", "c", "d"}, keys(t, c))
		_, err = d.Open()
		require.ErrorIs(t, err, catalog.ErrLocked)

		d.Crash(keep)
		require.ErrorIs(t, apply(c, "late", false), catalog.ErrClosed)
		c, err = d.Open()
		require.NoError(t, err)
		require.Equal(t, want, keys(t, c))
	}
}

// TestCrashBetweenGenerations forgets a generation after the next was written: every crash leaves at least one.
func TestCrashBetweenGenerations(t *testing.T) {
	for keep, want := range [][]uint64{{1}, {1, 2}, {2}} {
		var d Disk
		c, err := d.Open()
		require.NoError(t, err)
		var b catalog.Batch
		b.Put(&catalog.Record{Key: "k", Gen: 1})
		require.NoError(t, c.Apply(&b, true))
		b.Reset()
		b.Put(&catalog.Record{Key: "k", Gen: 2})
		require.NoError(t, c.Apply(&b, false))
		b.Reset()
		b.Delete("", "k", 1)
		require.NoError(t, c.Apply(&b, false))
		d.Crash(keep)
		c, err = d.Open()
		require.NoError(t, err)
		var got []uint64
		require.NoError(t, c.Scan(t.Context(), func(r *catalog.Record) error {
			got = append(got, r.Gen)
			return nil
		}))
		require.Equal(t, want, got, "%d of 2 batches survive", keep)
	}
}

func TestKillKeepsUnsynced(t *testing.T) {
	var d Disk
	c, err := d.Open()
	require.NoError(t, err)
	require.NoError(t, apply(c, "a", false))
	d.Kill()
	require.ErrorIs(t, apply(c, "late", false), catalog.ErrClosed)
	c, err = d.Open()
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, keys(t, c))
	require.NoError(t, c.Close())
	d.Crash(0)
	c, err = d.Open()
	require.NoError(t, err)
	require.Empty(t, keys(t, c))
}

func TestFaults(t *testing.T) {
	var d Disk
	boom := errors.New("boom")
	d.Inject(Fault{Op: Open, Err: boom})
	_, err := d.Open()
	require.Equal(t, boom, err)
	c, err := d.Open()
	require.NoError(t, err)

	d.Inject(Fault{Op: Apply, After: 1, Err: boom})
	d.Inject(Fault{Op: Apply, After: 2, Err: boom, Applied: true})
	require.NoError(t, apply(c, "a", false))
	require.Equal(t, boom, apply(c, "b", false))
	require.Equal(t, boom, apply(c, "c", true))
	require.NoError(t, apply(c, "d", false))
	require.Equal(t, []string{"a", "c", "d"}, keys(t, c))

	for op, call := range map[Op]func() error{
		Scan:  func() error { return c.Scan(t.Context(), func(*catalog.Record) error { return nil }) },
		Get:   func() error { _, _, err := c.Get("", "a", 0); return err },
		Meta:  func() error { _, _, err := c.Meta("a"); return err },
		Close: func() error { return c.Close() },
	} {
		d.Inject(Fault{Op: op, Err: boom})
		require.Equal(t, boom, call(), "op %d", op)
	}
}

func TestCorrupt(t *testing.T) {
	var d Disk
	c, err := d.Open()
	require.NoError(t, err)
	require.NoError(t, apply(c, "a", false))
	require.NoError(t, apply(c, "b", true))
	var b catalog.Batch
	b.Put(&catalog.Record{Key: "a", Gen: 1})
	require.NoError(t, c.Apply(&b, false))
	d.Corrupt("", "a", 1, 17)
	d.Corrupt("", "a", 2, 17) // there is none
	_, _, err = c.Get("", "a", 1)
	require.ErrorIs(t, err, catalog.ErrCorrupt)
	var seen []string
	err = c.Scan(t.Context(), func(r *catalog.Record) error {
		seen = append(seen, Clone(r).Key)
		return nil
	})
	require.ErrorIs(t, err, catalog.ErrCorrupt)
	require.Equal(t, []string{"a", "b"}, seen, "the other generation and the other key")
}

func TestScanPoisonsWhatItLent(t *testing.T) {
	var d Disk
	c, err := d.Open()
	require.NoError(t, err)
	var b catalog.Batch
	b.Put(&catalog.Record{Tenant: "abc", Key: "abc", Group: "abc", Target: "abc"})
	require.NoError(t, c.Apply(&b, false))
	var kept, cloned catalog.Record
	require.NoError(t, c.Scan(t.Context(), func(r *catalog.Record) error {
		kept, cloned = *r, Clone(r)
		return nil
	}))
	for _, s := range []string{kept.Tenant, kept.Key, kept.Group, kept.Target} {
		require.Equal(t, "\xdb\xdb\xdb", s)
	}
	for _, s := range []string{cloned.Tenant, cloned.Key, cloned.Group, cloned.Target} {
		require.Equal(t, "abc", s)
	}
}
