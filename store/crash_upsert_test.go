package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// objectState is all that a caller may ask for with a put and see afterwards.
type objectState struct {
	Value   int // the size, which tells the values apart
	Type    ObjectType
	Group   string
	HardPin bool
	SoftPin int64 // ms
	Durable bool
}

func stateOf(t *testing.T, s *Store, key string) *objectState {
	t.Helper()
	i, err := s.Stat(key)
	if err != nil {
		require.ErrorIs(t, err, ErrNotFound)
		return nil
	}
	wantWhole(t, s, key, random(int(i.Size)))
	st := &objectState{Value: int(i.Size), Type: i.Type, Group: i.Group, HardPin: i.HardPin, Durable: i.Durable}
	if !i.SoftPin.IsZero() {
		st.SoftPin = i.SoftPin.UnixMilli()
	}
	return st
}

// upsertCase is a durable upsert of an object in some state.
type upsertCase struct {
	old  *PutOptions // nil: none
	link bool        // the old one is a link
	opts PutOptions
	size int
}

func upsertCases() (out []upsertCase) {
	olds := []*PutOptions{nil}
	for _, o := range []PutOptions{{}, {Group: "g"}, {HardPin: true}, {SoftPin: time.Hour}, {Group: "g", HardPin: true, SoftPin: time.Hour}} {
		durable := o
		durable.Durable = true
		olds = append(olds, &o, &durable)
	}
	for _, old := range olds {
		for _, opts := range []PutOptions{{}, {Group: "g"}, {HardPin: true}, {SoftPin: 2 * time.Hour}, {Type: Weight, OwnFile: true},
			{Type: Tensor, Group: "g", HardPin: true, SoftPin: 2 * time.Hour}} {
			opts.Durable = true
			for _, link := range []bool{false, old != nil} {
				out = append(out, upsertCase{old, link, opts, 6000})
				if !link {
					break
				}
			}
		}
	}
	return out
}

func (c *upsertCase) begin(t *testing.T, s *Store) (old *objectState) {
	ctx := context.Background()
	if c.old == nil {
		return nil
	}
	o := *c.old
	if c.link {
		require.NoError(t, s.Put(ctx, "target", random(5000), &PutOptions{Durable: o.Durable}))
		require.NoError(t, s.Link(ctx, "k", "target", &o))
	} else {
		require.NoError(t, s.Put(ctx, "k", random(5000), &o))
	}
	return stateOf(t, s, "k")
}

// after is what the upsert makes of the old state: what it asks for, and of the rest what the old object had.
func (c *upsertCase) after(old *objectState, soft int64) *objectState {
	want := &objectState{Value: c.size, Type: c.opts.Type, Group: c.opts.Group, HardPin: c.opts.HardPin, SoftPin: soft, Durable: true}
	if old == nil {
		return want
	}
	want.HardPin = want.HardPin || old.HardPin
	if want.Group == "" {
		want.Group = old.Group
	}
	if want.SoftPin == 0 {
		want.SoftPin = old.SoftPin
	}
	return want
}

// TestCrashUpsertOptions ends the machine at each write of a durable upsert, for each option and each state of the old
// object. What was acknowledged is there with all its options, also after a later reboot; what was not is there with
// all of them or not at all.
func TestCrashUpsertOptions(t *testing.T) {
	cases := upsertCases()
	first, step := 0, 1
	if testing.Short() {
		step = 6
		first = rand.IntN(step)
	}
	for i := first; i < len(cases); i += step {
		c := cases[i]
		for _, how := range []int{crashKill, crashReboot, crashPower} {
			if testing.Short() && how != crashKill {
				continue // each ends with a reboot
			}
			name := fmt.Sprintf("%+v %v %+v %d", c.old, c.link, c.opts, how)
			for at, acknowledged := int32(0), false; !acknowledged; at++ {
				require.Less(t, at, int32(20), name)
				acknowledged = c.run(t, name, at, how)
			}
		}
	}
}

func (c *upsertCase) run(t *testing.T, name string, at int32, how int) (acknowledged bool) {
	name = fmt.Sprintf("%s, cut at %d", name, at)
	clock := time.Now()
	r := newCrashRig(t, Options{MemoryBytes: MinMemoryBytes, FileBytes: 4096, Clock: func() time.Time { return clock }})
	s := r.boot()
	old := c.begin(t, s)
	soft := int64(0)
	if c.opts.SoftPin > 0 {
		soft = clock.Add(c.opts.SoftPin).UnixMilli()
	}
	want := c.after(old, soft)
	r.cutAfter(at, how)
	err := s.Upsert(context.Background(), "k", random(c.size), &c.opts)
	acknowledged = err == nil && r.cut.Load().left.Load() >= 0
	if acknowledged {
		require.Equal(t, want, stateOf(t, s, "k"), name)
	}
	r.end(how)
	s = r.boot()
	found := stateOf(t, s, "k")
	switch {
	case acknowledged, found != nil && found.Value == c.size:
		require.Equal(t, want, found, name)
	case old == nil, found == nil:
		require.Nil(t, found, name)
		require.True(t, old == nil || !old.Durable && how != crashKill, "%s: the old one is gone", name)
	default:
		require.Equal(t, old, found, name)
	}
	r.end(crashReboot)
	if s = r.boot(); found != nil && found.Durable {
		require.Equal(t, found, stateOf(t, s, "k"), "%s: after a later reboot", name)
	}
	require.NoError(t, s.Close())
	r.s = nil
	return acknowledged
}

// TestCrashRecordWithoutGroup has records that lack the group that memory knows, as an earlier version wrote them: what
// survived in memory keeps its group, and the record gets it.
func TestCrashRecordWithoutGroup(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "k", random(5000), &PutOptions{Durable: true, Group: "g"}))
	require.NoError(t, s.Link(ctx, "l", "k", &PutOptions{Durable: true, Group: "h"}))
	var b changes
	for _, name := range []string{"k", "l"} {
		o, err := s.m.Stat(s.key(name))
		require.NoError(t, err)
		rec := s.recordOf(s.key(name), &o)
		rec.Group = ""
		b.Put(&rec)
	}
	require.NoError(t, b.apply(s.catalog, true))
	r.kill()
	s = r.boot()
	for range 2 {
		require.Equal(t, "g", stateOf(t, s, "k").Group)
		require.Equal(t, "h", stateOf(t, s, "l").Group)
		s = r.reboot()
	}
}

// TestCrashPinsDuringUpsert changes the old object's pins, by another put, between the record of a durable upsert and
// its commit: what the commit inherits is what the record says, whenever the machine ends.
func TestCrashPinsDuringUpsert(t *testing.T) {
	ctx := context.Background()
	for at := int32(0); at < 6; at++ {
		r := newCrashRig(t, Options{})
		s := r.boot()
		w, err := s.Create(ctx, "k", 4000, &PutOptions{Replace: true, HardPin: true})
		require.NoError(t, err)
		_, err = w.Write(random(4000))
		require.NoError(t, err)
		gate := r.holdApply()
		put := make(chan error, 1)
		go func() { put <- s.Upsert(ctx, "k", random(6000), durably()) }()
		<-gate.arrived // the record says: no pin
		require.NoError(t, w.Commit(ctx))
		wantHard(t, s, "k", true)
		r.cutAfter(at+1, crashKill) // the record that waits has passed its first half step
		close(gate.release)
		<-put
		i, err := s.Stat("k")
		require.NoError(t, err)
		require.True(t, i.HardPin)
		r.end(crashReboot)
		if s = r.boot(); i.Size == 6000 {
			wantHard(t, s, "k", true)
			wantWhole(t, s, "k", random(6000))
		}
	}
}
