package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/kvcache-ai/mooncake-go/examples/contest"
	"github.com/kvcache-ai/mooncake-go/store"
)

const smallBytes = 4 << 10

// smallRow reads 4 KiB objects at random out of more than the caches hold.
type smallRow struct {
	b     *contest.Bench
	s     *store.Store
	raw   *shared
	order []int
	keys  []string // in the same order
	next  atomic.Int64
	turn  int
	extra float64 // microseconds that a get may cost beyond the copy
	what  string
}

func smallObjects(b *contest.Bench) int { return b.Scale(2<<30) / smallBytes }

func runSmall(ctx context.Context, b *contest.Bench) error {
	n := smallObjects(b)
	s, err := openReady(ctx, store.Options{MemoryBytes: int64(n)*smallBytes*9/8 + 64<<20, HighWatermark: 1})
	if err != nil {
		return err
	}
	defer s.Close()
	r, err := newSmallRow(ctx, b, s)
	if err != nil {
		return err
	}
	defer r.raw.close()
	r.extra, r.what = 0.4, "hot index"
	if err := r.measure(ctx); err != nil {
		return err
	}
	return existsHot(b, s, makeKeys('s', upTo(10_000)))
}

// newSmallRow puts the objects and maps as much memory to compare with.
func newSmallRow(ctx context.Context, b *contest.Bench, s *store.Store) (*smallRow, error) {
	n := smallObjects(b)
	r := &smallRow{b: b, s: s, order: order(n), turn: min(n/2, 100_000)}
	r.keys = makeKeys('s', r.order)
	value := make([]byte, smallBytes)
	for i, k := range makeKeys('s', upTo(n)) {
		value[0], value[1], value[2] = byte(i), byte(i>>8), byte(i>>16)
		if err := s.Put(ctx, k, value, nil); err != nil {
			return nil, err
		}
	}
	var err error
	r.raw, err = newShared(int64(n) * smallBytes)
	return r, err
}

func (r *smallRow) measure(ctx context.Context) error {
	var turns []contest.Contender
	for threads := 1; threads <= 2; threads++ {
		turns = append(turns, r.turnOf(threads, r.copyRaw), r.turnOf(threads, func(from int, dst []byte) error {
			return r.get(ctx, from, dst)
		}))
	}
	contest.Settle()
	m, err := r.b.Contest(turns...)
	if err != nil {
		return err
	}
	allocs, err := contest.AllocsPerOp(r.turn, func() error { return r.get(ctx, 0, make([]byte, smallBytes)) })
	if err != nil {
		return err
	}
	more := (m[1] - m[0]) / 1e3
	r.b.Add(contest.Result{Case: "GetInto 4 KiB, " + r.what, Unit: "us", Value: m[1] / 1e3,
		Note: fmt.Sprintf("%.3f us more", more)}.Than(m[0]/1e3, "random copy").
		Want(fmt.Sprintf("<= copy + %g us", r.extra), more <= r.extra))
	r.b.Add(contest.Result{Case: "  allocations", Unit: "per op", Value: allocs}.Want("0", allocs < 0.001))
	r.b.Add(contest.Result{Case: "  2 threads over 1", Unit: "x", Value: 2 * m[1] / m[3]}.Than(2*m[0]/m[2], "random copy").AtLeast(0.95))
	return nil
}

// turnOf gives each thread other objects, so that no turn finds in the caches what the last one left.
func (r *smallRow) turnOf(threads int, fn func(from int, dst []byte) error) contest.Contender {
	return func() (float64, error) {
		from := int(r.next.Add(int64(threads*r.turn))) - threads*r.turn
		return contest.NsPerOp(r.turn, threads, func(thread int) error {
			return fn(from+thread*r.turn, make([]byte, smallBytes))
		})
	}
}

func (r *smallRow) copyRaw(from int, dst []byte) error {
	for i := range r.turn {
		k := r.order[(from+i)%len(r.order)]
		copy(dst, r.raw.mem[k*smallBytes:][:smallBytes])
	}
	return nil
}

func (r *smallRow) get(ctx context.Context, from int, dst []byte) error {
	for i := range r.turn {
		if _, err := r.s.GetInto(ctx, r.keys[(from+i)%len(r.keys)], dst, nil); err != nil {
			return err
		}
	}
	return nil
}

// existsBatch is how many keys are asked for in a call.
const existsBatch = 1000

func existsHot(b *contest.Bench, s *store.Store, keys []string) error {
	m := newLockedMap()
	for _, k := range keys {
		m.put(k, nil)
	}
	calls := b.Scale(1000)
	found := make([]bool, existsBatch)
	medians, err := b.Contest(
		func() (float64, error) {
			ns, err := contest.NsPerOp(calls*existsBatch, 1, func(int) error {
				for i := range calls {
					at := i * existsBatch % len(keys)
					if err := allFound(s, keys[at:at+existsBatch], found); err != nil {
						return err
					}
				}
				return nil
			})
			return 1e3 / ns, err
		},
		func() (float64, error) {
			ns, err := contest.NsPerOp(calls*existsBatch, 1, func(int) error {
				for i := range calls * existsBatch {
					m.get(keys[i%len(keys)])
				}
				return nil
			})
			return 1e3 / ns, err
		})
	if err != nil {
		return err
	}
	b.Add(contest.Result{Case: "ExistsBatch of 1000, hot", Unit: "M keys/s", Value: medians[0]}.
		Than(medians[1], "Go maps under locks").Want(">= 10 M/s", medians[0] >= 10))
	return nil
}
