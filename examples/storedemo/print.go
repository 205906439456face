package main

import (
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/kvcache-ai/mooncake-go/store"
)

func (d *demo) printUsage() error {
	u, err := d.s.Usage()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "type\tobjects\tmemory\t\tSSD\t\t")
	for t := range store.Types {
		mem, ssd := u.Tiers[store.TierMemory][t], u.Tiers[store.TierSSD][t]
		if u.Objects[t] > 0 {
			fmt.Fprintf(w, "%v\t%d\t%d\t%s\t%d\t%s\t\n", store.ObjectType(t), u.Objects[t], mem.Count, size(mem.Bytes), ssd.Count,
				size(ssd.Bytes))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Printf("Memory taken: %s of %s; metadata %s\n", size(u.MemoryTaken), size(u.MemoryBudget),
		size(u.RecordBytes+u.IndexBytes))
	return nil
}

// current is the store that the demo has open now, for the metrics.
type current struct{ d *demo }

func (c current) open() (*store.Store, error) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if c.d.s == nil {
		return nil, store.ErrClosed
	}
	return c.d.s, nil
}

func (c current) Counters() store.Counters {
	s, err := c.open()
	if err != nil {
		return store.Counters{}
	}
	return s.Counters()
}

func (c current) Usage() (store.Usage, error) {
	s, err := c.open()
	if err != nil {
		return store.Usage{}, err
	}
	return s.Usage()
}

// total is how many objects there are.
func total(u *store.Usage) (n int64) {
	for _, k := range u.Objects {
		n += k
	}
	return n
}

func objects(n int64) string {
	if n == 1 {
		return "1 object"
	}
	return fmt.Sprintf("%d objects", n)
}

func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}

func rate(n int64, d time.Duration) string {
	return fmt.Sprintf("%.2f GB/s", float64(n)/1e9/d.Seconds())
}

// short is a duration with three digits.
func short(d time.Duration) string {
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(10 * time.Nanosecond).String()
}
