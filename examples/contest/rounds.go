package contest

import (
	"runtime"
	"slices"
	"sync"
	"time"
)

// Contender is one way to do the same thing. A call is one turn and returns its figure.
type Contender func() (float64, error)

// Run lets the contenders take turns, each round beginning with another one, and returns their medians. A first round
// only warms up.
func Run(rounds int, contenders ...Contender) ([]float64, error) {
	figures := make([][]float64, len(contenders))
	for round := range rounds + 1 {
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
		medians[i] = Median(f)
	}
	return medians, nil
}

// Meter is a stopwatch for turns that also takes the processor time, which a busy machine changes less.
type Meter struct {
	bytes int64
	cpu   []float64
}

// NewMeter is for turns that move so many bytes.
func NewMeter(bytes int64) *Meter { return &Meter{bytes: bytes} }

// Time is a turn of fn, in GB/s.
func (m *Meter) Time(fn func() error) (float64, error) {
	cpu, start := CPUSeconds(), time.Now()
	err := fn()
	v := Since(start, m.bytes)
	m.cpu = append(m.cpu, CPUSeconds()-cpu)
	return v, err
}

// CPU is the median of the processor seconds for a GB.
func (m *Meter) CPU() float64 { return Median(m.cpu) / float64(m.bytes) * 1e9 }

// Median is the middle one, or between the two in the middle.
func Median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// Parallel runs fn on so many threads and returns the time until all are done, and the first error.
func Parallel(threads int, fn func(thread int) error) (time.Duration, error) {
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

// GBps is a turn that moves bytes on so many threads, in GB/s.
func GBps(bytes int64, threads int, fn func(thread int) error) (float64, error) {
	took, err := Parallel(threads, fn)
	return float64(bytes) / 1e9 / took.Seconds(), err
}

// NsPerOp is a turn of n operations on each of so many threads: nanoseconds per operation of one thread.
func NsPerOp(n, threads int, fn func(thread int) error) (float64, error) {
	took, err := Parallel(threads, fn)
	return float64(took.Nanoseconds()) / float64(n), err
}

// AllocsPerOp counts allocations of fn, which does n operations.
func AllocsPerOp(n int, fn func() error) (float64, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := fn()
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(n), err
}

// Since is bytes in GB/s from start to now.
func Since(start time.Time, bytes int64) float64 {
	return float64(bytes) / 1e9 / time.Since(start).Seconds()
}
