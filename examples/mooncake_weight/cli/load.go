package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/kvcache-ai/mooncake-go/weight"
)

// runLoad makes a revision's directory and turns into the engine: the engine gets this process's pid, and so signals
// and the exit code are its own. The store is closed by then; the directory stays as long as the engine or a child of
// it lives. Without a command it prints the directory and keeps it until it is interrupted.
func (c *cli) runLoad(ctx context.Context) error {
	command := c.flags.Args()
	ref, err := c.loadRef(command)
	if err != nil {
		return err
	}
	var program string
	if len(command) > 0 {
		if program, err = exec.LookPath(command[0]); err != nil {
			return err
		}
	}
	m, closeAll, err := c.weights(ctx)
	if err != nil {
		return err
	}
	l, err := m.Load(ctx, ref, &weight.LoadOptions{Verify: c.verify})
	if err != nil {
		_ = closeAll()
		return err
	}
	if len(command) == 0 {
		return c.hold(ctx, l, closeAll)
	}
	dir := l.Dir()
	lock, err := l.Detach()
	if err != nil {
		_ = closeAll()
		return err
	}
	defer func() { _ = lock.Close() }() // after the exec failed; the engine inherits it otherwise
	if err := closeAll(); err != nil {
		return err
	}
	err = syscall.Exec(program, substitute(command, ref, dir), os.Environ())
	return fmt.Errorf("start %s: %w", program, err)
}

// loadRef is the revision of the flags, else the one that a URI in the command names.
func (c *cli) loadRef(command []string) (weight.Ref, error) {
	if c.modelID != "" || c.rev != "" {
		return c.ref()
	}
	for _, arg := range command {
		if uri, ok := findURI(arg); ok {
			return weight.ParseURI(uri)
		}
	}
	return c.ref()
}

// findURI is the mooncake-weight URI in an argument: the argument itself, or what follows its first '='.
func findURI(arg string) (string, bool) {
	const start = weight.Scheme + "://"
	if strings.HasPrefix(arg, start) {
		return arg, true
	}
	if _, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(value, start) {
		return value, true
	}
	return "", false
}

// substitute puts the directory in the place of {dir} and of URIs that name the revision.
func substitute(command []string, ref weight.Ref, dir string) []string {
	out := make([]string, len(command))
	for i, arg := range command {
		if uri, ok := findURI(arg); ok {
			if r, err := weight.ParseURI(uri); err == nil && r == ref {
				arg = strings.TrimSuffix(arg, uri) + dir
			}
		}
		out[i] = strings.ReplaceAll(arg, "{dir}", dir)
	}
	return out
}

// hold keeps the directory until the program is interrupted.
func (c *cli) hold(ctx context.Context, l *weight.Loaded, closeAll func() error) error {
	if c.json {
		if err := c.printJSON(map[string]any{"ok": true, "dir": l.Dir()}); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(c.out, l.Dir())
	}
	<-ctx.Done()
	err := l.Close()
	if e := closeAll(); err == nil {
		err = e
	}
	return err
}
