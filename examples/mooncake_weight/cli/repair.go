package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvcache-ai/mooncake-go/store"
	"github.com/kvcache-ai/mooncake-go/weight"
)

// runRepair opens a damaged directory with what verifies, and says what that was.
func (c *cli) runRepair(ctx context.Context) (err error) {
	if err := c.noArgs(); err != nil {
		return err
	}
	dir, _, err := c.directory()
	if err != nil {
		return err
	}
	s, err := store.Open(ctx, store.Options{Dir: dir, MemoryBytes: c.memory, VolatileMemory: true, Repair: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	revisions, err := repairedRevisions(ctx, s)
	if err != nil {
		return err
	}
	r := s.RepairReport()
	if c.json {
		return c.printJSON(map[string]any{"ok": true, "damage": text(r.Damage), "backup": r.Backup, "skipped_records": r.SkippedRecords,
			"adopted": r.Adopted, "adopted_objects": r.AdoptedObjects, "adopted_bytes": r.AdoptedBytes,
			"unreadable_records": r.UnreadableRecords, "revisions": revisions})
	}
	c.printRepair(r)
	for _, v := range revisions {
		fmt.Fprintf(c.out, "%s is %s\n", v.Ref.URI(), v.State)
	}
	return nil
}

func repairedRevisions(ctx context.Context, s *store.Store) (_ []weight.Summary, err error) {
	m, err := weight.Open(ctx, s, weight.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	return m.List(ctx, "")
}

func (c *cli) printRepair(r *store.RepairReport) {
	if r.Damage == nil && r.SkippedRecords == 0 {
		fmt.Fprintln(c.out, "nothing is damaged")
		return
	}
	if r.Damage != nil {
		fmt.Fprintf(c.out, "damage    %v\ncopy      of the catalogue as it was: %s\n", r.Damage, r.Backup)
	}
	fmt.Fprintf(c.out, "skipped   %d records of the catalogue that do not verify\n", r.SkippedRecords)
	for _, o := range r.Adopted {
		fmt.Fprintf(c.out, "adopted   %10s  %s\n", size(o.Size), plain(o.Key))
	}
	fmt.Fprintf(c.out, "adopted   %d objects, %s, whose bytes verify; some may have been removed before\n", r.AdoptedObjects, size(r.AdoptedBytes))
	fmt.Fprintf(c.out, "given up  %d records whose bytes do not verify\n", r.UnreadableRecords)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
