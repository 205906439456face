package store

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog/catalogtest"
)

// linkTargets are the states that the target of a link may be in.
var linkTargets = map[string]func(t *testing.T, s *Store){
	"in memory": func(t *testing.T, s *Store) {
		require.NoError(t, s.Put(context.Background(), "a", random(5000), nil))
	},
	"in both tiers": func(t *testing.T, s *Store) {
		require.NoError(t, s.Put(context.Background(), "a", random(5000), nil))
		require.NoError(t, s.Sync(context.Background()))
	},
	"durable": func(t *testing.T, s *Store) {
		require.NoError(t, s.Put(context.Background(), "a", random(5000), durably()))
	},
	"a link": func(t *testing.T, s *Store) {
		require.NoError(t, s.Put(context.Background(), "owner", random(5000), nil))
		require.NoError(t, s.Link(context.Background(), "a", "owner", nil))
	},
}

// TestCrashDurableLink ends the machine at each write of a durable link. While it is made nobody sees it; after the end
// it is there and durable with all its options, or it is not there and can be made.
func TestCrashDurableLink(t *testing.T) {
	ctx := context.Background()
	for name, target := range linkTargets {
		for _, how := range []int{crashKill, crashReboot, crashPower} {
			for at, acknowledged := int32(0), false; !acknowledged; at++ {
				where := fmt.Sprintf("%s, %d, cut at %d", name, how, at)
				require.Less(t, at, int32(20), where)
				clock := time.Now()
				r := newCrashRig(t, Options{Clock: func() time.Time { return clock }})
				s := r.boot()
				target(t, s)
				o := PutOptions{Durable: true, Group: "g", HardPin: true, SoftPin: time.Hour}
				want := &objectState{Value: 5000, Group: "g", HardPin: true, SoftPin: clock.Add(time.Hour).UnixMilli(), Durable: true}
				r.cutAfter(at, how)
				err := s.Link(ctx, "b", "a", &o)
				acknowledged = err == nil
				if r.cut.Load().left.Load() >= 0 {
					require.NoError(t, err, where)
				}
				r.end(how)
				s = r.boot()
				found := stateOf(t, s, "b")
				if found != nil || acknowledged {
					require.Equal(t, want, found, where)
				} else if stateOf(t, s, "a") != nil {
					require.NoError(t, s.Link(ctx, "b", "a", &o), where)
				} else {
					require.NotEqual(t, crashKill, how, where)
					continue
				}
				s = r.reboot()
				require.Equal(t, want, stateOf(t, s, "b"), where)
			}
		}
	}
}

// TestDurableLinkIsInvisibleUntilRecorded looks for a durable link, and for a target that it makes durable, while the
// record is on its way: they do not show before it is.
func TestDurableLinkIsInvisibleUntilRecorded(t *testing.T) {
	ctx := context.Background()
	for name, target := range linkTargets {
		for n := int32(0); n < 4; n++ {
			r := newCrashRig(t, Options{})
			s := r.boot()
			target(t, s)
			gate := r.holdApplyAfter(n)
			release := sync.OnceFunc(func() { close(gate.release) })
			defer release()
			linked := make(chan error, 1)
			go func() { linked <- s.Link(ctx, "b", "a", durably()) }()
			select {
			case <-gate.arrived:
				ok, err := s.Exists("b")
				require.NoError(t, err)
				require.False(t, ok, name)
				_, err = s.Stat("b")
				require.Error(t, err, name)
				_, err = s.Get(ctx, "b", nil)
				require.Error(t, err, name)
				_, err = s.View(ctx, "b", nil)
				require.Error(t, err, name)
				for i, err := range s.Objects(ctx, "") {
					require.NoError(t, err)
					require.NotEqual(t, "b", i.Key, name)
				}
				release()
				require.NoError(t, <-linked)
			case err := <-linked:
				require.NoError(t, err)
				r.gate.Store(nil)
			}
			wantWhole(t, s, "b", random(5000))
		}
	}
}

// TestLinkMeetsOthers removes, replaces or upserts while a durable link is being recorded.
func TestLinkMeetsOthers(t *testing.T) {
	ctx := context.Background()
	for name, meet := range map[string]struct {
		do     func(s *Store) error
		linked error
		want   int
	}{
		"target removed":  {func(s *Store) error { return s.Remove("a", true) }, nil, 5000},
		"target replaced": {func(s *Store) error { return s.Upsert(ctx, "a", random(77), nil) }, nil, 5000},
		"link upserted":   {func(s *Store) error { return s.Upsert(ctx, "b", random(88), nil) }, ErrExists, 88},
	} {
		t.Run(name, func(t *testing.T) {
			r := newCrashRig(t, Options{})
			s := r.boot()
			require.NoError(t, s.Put(ctx, "a", random(5000), durably()))
			gate := r.holdApply()
			linked, met := make(chan error, 1), make(chan error, 1)
			go func() { linked <- s.Link(ctx, "b", "a", durably()) }()
			<-gate.arrived
			go func() { met <- meet.do(s) }() // may wait for the record
			close(gate.release)
			err := <-linked
			require.NoError(t, <-met)
			if err != nil {
				require.ErrorIs(t, err, meet.linked)
			}
			wantWhole(t, s, "b", random(meet.want))
			r.kill()
			s = r.boot()
			wantWhole(t, s, "b", random(meet.want))
			require.NoError(t, s.Remove("b", true))
			_ = s.Remove("a", true)
			requireEmptied(t, s)
		})
	}
}

// A link whose record fails leaves nothing: the key is free, and the owner's bytes go with the owner.
func TestFailedLinkLeavesNothing(t *testing.T) {
	ctx := context.Background()
	for _, applied := range []bool{false, true} {
		for _, durable := range []bool{false, true} {
			r := newCrashRig(t, Options{})
			s := r.boot()
			require.NoError(t, s.Put(ctx, "a", random(5000), durably()))
			r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, Err: errDisk, Applied: applied})
			require.ErrorIs(t, s.Link(ctx, "b", "a", &PutOptions{Durable: durable, Group: "g"}), ErrNotDurable)
			wantAbsent(t, s, "b")
			_, err := s.Group("g")
			require.ErrorIs(t, err, ErrGroupNotFound)
			require.NoError(t, s.Put(ctx, "b", random(10), nil))
			require.NoError(t, s.Remove("b", true))
			require.NoError(t, s.Remove("a", true))
			requireEmptied(t, s)
			r.kill()
			s = r.boot()
			wantAbsent(t, s, "b")
			wantAbsent(t, s, "a")
		}
	}
}
