package main

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"
)

// result is one figure beside the machine's own.
type result struct {
	Row   string  `json:"row"`
	Case  string  `json:"case"`
	Unit  string  `json:"unit"`
	Value float64 `json:"value"`
	Limit float64 `json:"limit,omitempty"` // the machine's own, in the same unit
	Of    string  `json:"of,omitempty"`    // what Limit is
	Ratio float64 `json:"ratio,omitempty"` // Value / Limit
	Goal  string  `json:"goal,omitempty"`
	Met   *bool   `json:"met,omitempty"`
	Note  string  `json:"note,omitempty"`
}

func (r result) String() string {
	s := fmt.Sprintf("  %-34s %9s %-10s", r.Case, digits(r.Value), r.Unit)
	if r.Of != "" {
		s += fmt.Sprintf(" | %9s %-22s | %5.2fx", digits(r.Limit), r.Of, r.Ratio)
	}
	if r.Goal != "" {
		s += " | goal " + r.Goal
	}
	if r.Met != nil {
		s += map[bool]string{true: ": met", false: ": MISSED"}[*r.Met]
	}
	if r.Note != "" {
		s += "  (" + r.Note + ")"
	}
	return s
}

func digits(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1000:
		return fmt.Sprintf("%.0f", v)
	case a >= 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// than sets what the figure is compared with.
func (r result) than(limit float64, of string) result {
	r.Limit, r.Of = limit, of
	if limit != 0 {
		r.Ratio = r.Value / limit
	}
	return r
}

// want sets the goal.
func (r result) want(goal string, met bool) result {
	r.Goal, r.Met = goal, &met
	return r
}

func (r result) atLeast(ratio float64) result {
	return r.want(fmt.Sprintf(">= %gx", ratio), r.Ratio >= ratio)
}

func (r result) atMost(ratio float64) result {
	return r.want(fmt.Sprintf("<= %gx", ratio), r.Ratio <= ratio)
}

// contender is one way to do the same thing. run does one turn and returns its figure.
type contender func() (float64, error)

// contest lets the contenders take turns, each round beginning with another one, and returns their medians. The first
// round only warms up.
func (b *bench) contest(contenders ...contender) ([]float64, error) {
	figures := make([][]float64, len(contenders))
	for round := range b.rounds + 1 {
		for i := range contenders {
			who := (i + round) % len(contenders)
			v, err := contenders[who]()
			if err != nil {
				return nil, err
			}
			if round > 0 {
				figures[who] = append(figures[who], v)
			}
		}
	}
	medians := make([]float64, len(contenders))
	for i, f := range figures {
		medians[i] = median(f)
	}
	return medians, nil
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// parallel runs fn on so many threads and returns the time until all are done, and the first error.
func parallel(threads int, fn func(thread int) error) (time.Duration, error) {
	var wg sync.WaitGroup
	errs := make([]error, threads)
	start := time.Now()
	for t := range threads {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			errs[t] = fn(t)
		})
	}
	wg.Wait()
	took := time.Since(start)
	for _, err := range errs {
		if err != nil {
			return took, err
		}
	}
	return took, nil
}

// gbps is a turn that moves bytes on so many threads, in GB/s.
func gbps(bytes int64, threads int, fn func(thread int) error) (float64, error) {
	took, err := parallel(threads, fn)
	return float64(bytes) / 1e9 / took.Seconds(), err
}

// nsPerOp is a turn of n operations on each of so many threads: nanoseconds per operation of one thread.
func nsPerOp(n, threads int, fn func(thread int) error) (float64, error) {
	took, err := parallel(threads, fn)
	return float64(took.Nanoseconds()) / float64(n), err
}

// allocsPerOp counts allocations of fn, which does n operations.
func allocsPerOp(n int, fn func() error) (float64, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := fn()
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(n), err
}
