package arena

import (
	"fmt"
	"sync/atomic"
)

// Purpose is what memory outside the Go heap is used for.
type Purpose uint8

// The purposes.
const (
	Data     Purpose = iota // objects in a segment
	Metadata                // the meta region of a segment
	OwnFile                 // objects in files of their own
	Staging                 // buffers of transfers and of the SSD tier
	purposes
)

func (p Purpose) String() string {
	return [purposes]string{"data", "metadata", "own file", "staging"}[p]
}

// Accounting counts bytes by purpose against one budget. Its methods may be called from several goroutines.
type Accounting struct {
	budget atomic.Int64
	total  atomic.Int64
	used   [purposes]atomic.Int64
}

// NewAccounting returns an Accounting with nothing used. A budget of 0 admits nothing to TryReserve.
func NewAccounting(budgetBytes int64) *Accounting {
	a := &Accounting{}
	a.budget.Store(budgetBytes)
	return a
}

// TryReserve counts n bytes unless the total would pass the budget.
func (a *Accounting) TryReserve(p Purpose, n int64) bool {
	for {
		total := a.total.Load()
		if n > a.budget.Load()-total {
			return false
		}
		if a.total.CompareAndSwap(total, total+n) {
			a.used[p].Add(n)
			return true
		}
	}
}

// Add counts n bytes whatever the budget says: they are in use already.
func (a *Accounting) Add(p Purpose, n int64) {
	a.total.Add(n)
	a.used[p].Add(n)
}

// Sub takes back what Add or TryReserve counted. It panics if more is taken back than was counted.
func (a *Accounting) Sub(p Purpose, n int64) {
	if left := a.used[p].Add(-n); left < 0 {
		panic(fmt.Sprintf("arena: BUG: %v accounting is %d bytes below zero", p, -left))
	}
	a.total.Add(-n)
}

// Used returns the bytes counted for one purpose.
func (a *Accounting) Used(p Purpose) int64 { return a.used[p].Load() }

// Total returns the bytes counted for all purposes.
func (a *Accounting) Total() int64 { return a.total.Load() }

// SetBudget changes the budget. What is counted stays so, also above it.
func (a *Accounting) SetBudget(n int64) { a.budget.Store(n) }

// Budget returns the budget in bytes.
func (a *Accounting) Budget() int64 { return a.budget.Load() }
