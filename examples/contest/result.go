package contest

import (
	"fmt"
	"math"
)

// Result is one figure beside the machine's own.
type Result struct {
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

func (r Result) String() string {
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

// Than sets what the figure is compared with.
func (r Result) Than(limit float64, of string) Result {
	r.Limit, r.Of = limit, of
	if limit != 0 {
		r.Ratio = r.Value / limit
	}
	return r
}

// Want sets the goal.
func (r Result) Want(goal string, met bool) Result {
	r.Goal, r.Met = goal, &met
	return r
}

// AtLeast sets a goal for the ratio.
func (r Result) AtLeast(ratio float64) Result {
	return r.Want(fmt.Sprintf(">= %gx", ratio), r.Ratio >= ratio)
}

// AtMost sets a goal for the ratio.
func (r Result) AtMost(ratio float64) Result {
	return r.Want(fmt.Sprintf("<= %gx", ratio), r.Ratio <= ratio)
}
