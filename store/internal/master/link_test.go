package master

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

func TestLinksKeepTheBytesUntilTheLastGoes(t *testing.T) {
	for _, order := range [][]string{{"owner", "l1", "l2"}, {"l1", "owner", "l2"}, {"l2", "l1", "owner"}} {
		f := newFixture(t)
		o := f.put(request("owner", 100), Loc{1, 2, 0})
		f.link("l1", "owner", "")
		f.link("l2", "l1", "g") // a link to a link shares the same bytes
		u := f.Usage()
		require.EqualValues(t, 3, u.Objects[0])
		require.EqualValues(t, 100, u.Bytes[0][TierMemory])
		for i, name := range order {
			got, err := f.Acquire(f.now, key(name), second)
			require.NoError(t, err)
			require.Equal(t, o.Extents(), got.Extents())
			require.Equal(t, o.Ref, got.Holder())
			require.Equal(t, f.now+second, got.Lease)
			require.Equal(t, Loc{1, 2, 0}, got.SSD)
			require.Equal(t, len("owner")+1, got.SSDKeyLen)
			f.Release(got.Holder())
			gone, err := f.Remove(f.now, key(name), true)
			require.NoError(t, err)
			require.Equal(t, o.Ref, gone.Pinned)
			f.Release(gone.Pinned)
			require.Equal(t, i == 2, f.alloc.Stats().Free == f.empty.Free)
			require.Equal(t, i == 2, len(f.TakeEffects()) == 1)
		}
		f.requireEmpty()
	}
}

func TestLinkRefusals(t *testing.T) {
	f := newFixture(t)
	o := f.put(request("o", 100), Loc{})
	_, err := f.Link(f.now, LinkRequest{Key: key("l"), Target: "none"})
	require.ErrorIs(t, err, status.NotFound)
	_, err = f.Link(f.now, LinkRequest{Key: key(""), Target: "o"})
	require.ErrorIs(t, err, status.InvalidKey)
	f.Quarantine(&o, TierMemory)
	_, err = f.Link(f.now, LinkRequest{Key: key("l"), Target: "o"})
	require.ErrorIs(t, err, status.NoReplica)
	f.remove("o")
	f.requireEmpty()
}

func TestOwnerPutAgainWhileLinked(t *testing.T) {
	f := newFixture(t)
	old := f.put(request("o", 100), Loc{})
	f.link("l", "o", "")
	require.Equal(t, "o", f.OwnerName(key("l")))
	q := request("o", 50)
	q.Replace = true
	f.put(q, Loc{})
	f.link("l2", "o", "")
	got, err := f.Stat(key("l"))
	require.NoError(t, err)
	require.Equal(t, old.Extents(), got.Extents())
	require.EqualValues(t, 100, got.Size)
	q = request("l", 10) // the link itself is replaced
	q.Replace = true
	f.put(q, Loc{})
	require.Empty(t, f.OwnerName(key("l")))
	f.remove("l", "o", "l2")
	f.requireEmpty()
}

func TestLeaseOfALinkInAGroup(t *testing.T) {
	f := newFixture(t)
	f.put(request("o", 100), Loc{})
	f.link("l", "o", "g")
	require.True(t, f.Exists(f.now, key("l"), second))
	_, err := f.Remove(f.now, key("l"), false)
	require.ErrorIs(t, err, status.HasLease)
	_, err = f.Remove(f.now, key("o"), false)
	require.ErrorIs(t, err, status.HasLease)
	f.now += second
	_, err = f.Remove(f.now, key("l"), false)
	require.NoError(t, err)
}

func TestDurableLinkKeepsItsOwner(t *testing.T) {
	f := newFixture(t)
	f.put(request("o", 100), Loc{1, 1, 0})
	f.link("l", "o", "")
	o, err := f.Stat(key("l"))
	require.NoError(t, err)
	require.Len(t, f.victims(TierSSD), 1)
	f.SetDurable(&o)
	require.Empty(t, f.victims(TierSSD))
	gone, err := f.Remove(f.now, key("l"), true)
	require.NoError(t, err)
	require.True(t, gone.Durable)
	f.SetDurable(&o) // it is gone: nothing happens
	f.Release(gone.Pinned)
	f.remove("o")
	f.requireEmpty()
}
