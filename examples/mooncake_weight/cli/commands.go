package cli

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/kvcache-ai/mooncake-go/weight"
)

func (c *cli) runImport(ctx context.Context) error {
	ref, err := c.ref()
	if err != nil {
		return err
	}
	if c.q.Source == "" {
		return fmt.Errorf("%w: --source is missing", errUsage)
	}
	if err := c.noArgs(); err != nil {
		return err
	}
	c.q.Ref, c.q.Include, c.q.Exclude = ref, c.include, c.exclude
	return c.with(ctx, func(m *weight.Manager) error {
		i, err := m.Start(ctx, c.q)
		if err != nil {
			return err
		}
		stop := c.watch(i)
		<-waitOrCancel(ctx, i)
		r, err := i.Wait(context.Background())
		stop(err == nil)
		if err != nil {
			return err
		}
		if c.json {
			return c.printJSON(map[string]any{"ok": true, "ref": ref, "uri": ref.URI(), "result": r})
		}
		c.printResult(ref, r, i.Progress())
		return nil
	})
}

// waitOrCancel is closed when the import has ended, which ctx makes it do.
func waitOrCancel(ctx context.Context, i *weight.Import) <-chan struct{} {
	go func() {
		select {
		case <-ctx.Done():
			i.Cancel()
		case <-i.Done():
		}
	}()
	return i.Done()
}

func (c *cli) printResult(ref weight.Ref, r *weight.ImportResult, p weight.Progress) {
	for _, s := range r.Skipped {
		fmt.Fprintf(c.out, "left out  %s: %s\n", plain(s.Name), s.Reason)
	}
	switch {
	case r.Existed:
		fmt.Fprintf(c.out, "%s was READY with the same bytes: %d files, %s\n", ref.URI(), len(r.Manifest.Files), size(r.Manifest.Size))
		return
	case r.Resumed > 0:
		fmt.Fprintf(c.out, "went on from an earlier import: %d files were there\n", r.Resumed)
	}
	if r.Linked > 0 {
		fmt.Fprintf(c.out, "%d files share bytes that the store had\n", r.Linked)
	}
	fmt.Fprintf(c.out, "%s is READY: %d files, %s, %s read in %v\n", ref.URI(), len(r.Manifest.Files), size(r.Manifest.Size),
		size(r.Read), p.Elapsed.Round(time.Millisecond))
}

func (c *cli) runCheck(ctx context.Context) error {
	ref, err := c.ref()
	if err == nil {
		err = c.noArgs()
	}
	if err != nil {
		return err
	}
	depth := weight.Quick
	if c.deep {
		depth = weight.Deep
	}
	return c.with(ctx, func(m *weight.Manager) error {
		r, err := m.Check(ctx, ref, depth)
		if err != nil {
			return err
		}
		if c.json {
			err = c.printJSON(r)
		} else {
			c.printReport(r)
		}
		if bad := r.Err(); err == nil && bad != nil {
			err = reportedError{bad}
		}
		return err
	})
}

func (c *cli) printReport(r *weight.Report) {
	for _, f := range r.Files {
		state := "ok"
		if f.Problem != "" {
			state = f.Problem
		}
		fmt.Fprintf(c.out, "%-9s %10s  %s\n", state, size(f.Size), f.Name)
	}
	if r.OK {
		fmt.Fprintf(c.out, "%s is %s: %d files, %s\n", r.Ref.URI(), r.State, len(r.Files), size(r.Size))
	}
}

func (c *cli) runList(ctx context.Context) error {
	if err := c.noArgs(); err != nil {
		return err
	}
	return c.with(ctx, func(m *weight.Manager) error {
		all, err := m.List(ctx, c.modelID)
		if err != nil {
			return err
		}
		if c.json {
			if all == nil {
				all = []weight.Summary{}
			}
			return c.printJSON(all)
		}
		w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "MODEL\tREVISION\tSTATE\tFILES\tSIZE\tSTORED\tIN USE\tSOURCE")
		for _, s := range all {
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%d\t%s\n", s.Ref.ModelID, s.Ref.Revision, s.State, s.Files, size(s.Size),
				size(s.Stored), len(s.InUse), plain(s.Source+s.Problem))
		}
		return w.Flush()
	})
}

func (c *cli) runDelete(ctx context.Context) error {
	return c.runOn(ctx, "deleted", func(m *weight.Manager, ref weight.Ref) error { return m.Delete(ctx, ref) })
}

func (c *cli) runAbort(ctx context.Context) error {
	return c.runOn(ctx, "aborted", func(m *weight.Manager, ref weight.Ref) error { return m.Abort(ctx, ref) })
}

func (c *cli) runOn(ctx context.Context, done string, fn func(*weight.Manager, weight.Ref) error) error {
	ref, err := c.ref()
	if err == nil {
		err = c.noArgs()
	}
	if err != nil {
		return err
	}
	return c.with(ctx, func(m *weight.Manager) error {
		if err := fn(m, ref); err != nil {
			return err
		}
		if c.json {
			return c.printJSON(map[string]any{"ok": true, "ref": ref})
		}
		fmt.Fprintf(c.out, "%s %s\n", ref.URI(), done)
		return nil
	})
}

func (c *cli) runUsage(ctx context.Context) error {
	if err := c.noArgs(); err != nil {
		return err
	}
	return c.with(ctx, func(m *weight.Manager) error {
		all, total, err := m.Usage(ctx)
		if err != nil {
			return err
		}
		if c.json {
			if all == nil {
				all = []weight.Usage{}
			}
			return c.printJSON(map[string]any{"revisions": all, "total": total})
		}
		w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "MODEL\tREVISION\tBYTES\tOF THESE SHARED")
		for _, u := range all {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", u.Ref.ModelID, u.Ref.Revision, size(u.Bytes), size(u.Shared))
		}
		fmt.Fprintf(w, "all together\t\t%s\t\n", size(total))
		return w.Flush()
	})
}
