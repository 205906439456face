package cli

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/kvcache-ai/mooncake-go/store"
)

// shmRow is a Leftover as the output for machines has it.
type shmRow struct {
	Path  string              `json:"path"`
	State store.LeftoverState `json:"state"`
	Bytes int64               `json:"bytes"`
	PID   int                 `json:"pid"`
	Alive bool                `json:"alive"`
	Dir   string              `json:"dir"`
	Boot  string              `json:"boot"`
}

// runShm lists the shared memory of stores, or frees it and lists what was freed. It opens no store.
func (c *cli) runShm(context.Context) (err error) {
	var all []store.Leftover
	if c.free {
		all, err = store.FreeLeftovers(c.shmDir, c.flags.Args()...)
	} else if err = c.noArgs(); err == nil {
		all, err = store.Leftovers(c.shmDir)
	}
	if err != nil {
		return err
	}
	rows := []shmRow{}
	var sum int64
	for _, l := range all {
		rows = append(rows, shmRow{l.Path, l.State, l.Bytes, l.PID, l.State == store.LeftoverInUse, l.Dir, l.Boot})
		sum += l.Bytes
	}
	if c.json {
		return c.printJSON(map[string]any{"freed": c.free, "memory": rows, "bytes": sum})
	}
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PATH\tSTATE\tBYTES\tPID\tDIRECTORY\tBOOT")
	for _, r := range rows {
		pid := "dead"
		if r.Alive {
			pid = fmt.Sprint(r.PID)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%.8s\n", plain(r.Path), r.State, size(r.Bytes), pid, plain(r.Dir), r.Boot)
	}
	if c.free {
		fmt.Fprintf(w, "freed\t\t%s\t\t\t\n", size(sum))
	}
	return w.Flush()
}
