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
// it lives. Without a command it prints the directory and keeps it until it is interrupted. Only this user can read the
// directory, and the one that --user names or that the command changes to: a command that is not known to do so fails
// on its own.
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
	to := c.user
	if guess := engineUser(command); to == "" && knownUser(guess) {
		to = guess
	}
	l, err := m.Load(ctx, ref, &weight.LoadOptions{Verify: c.verify, User: to})
	if err != nil {
		_ = closeAll()
		return err
	}
	if opened := l.HandedOut(); len(opened) > 0 {
		fmt.Fprintf(c.err, "%s: handed out to user %s, as long as it is loaded: %s\n", c.flags.Name(), to, strings.Join(opened, " "))
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
	if err := ctx.Err(); err != nil { // a signal that came before there was an engine to get it
		return err
	}
	err = syscall.Exec(program, substitute(command, ref, dir), os.Environ())
	return fmt.Errorf("start %s: %w", program, err)
}

// loadRef is the revision of the flags, else the one that the first URI in the command names.
func (c *cli) loadRef(command []string) (weight.Ref, error) {
	if c.modelID != "" || c.rev != "" {
		return c.ref()
	}
	var bad error
	for _, arg := range command {
		spans := findURIs(arg)
		if s, ok := wholeURI(arg); ok {
			spans = append(spans, s)
		}
		for _, s := range spans {
			ref, err := weight.ParseURI(arg[s.from:s.to])
			if err == nil {
				return ref, nil
			}
			bad = fmt.Errorf("%w: %w", errUsage, err)
		}
	}
	if bad != nil {
		return weight.Ref{}, bad
	}
	return c.ref()
}

// span is a part of an argument.
type span struct{ from, to int }

const uriStart = weight.Scheme + "://"

// wholeURI is the URI that an argument is, or that follows its first '='. It may hold any character.
func wholeURI(arg string) (span, bool) {
	from := 0
	if !strings.HasPrefix(arg, uriStart) {
		from = strings.IndexByte(arg, '=') + 1
	}
	return span{from, len(arg)}, strings.HasPrefix(arg[from:], uriStart)
}

// uriEnds are the characters that end a URI inside a longer text, a shell's command for example: in a name they must
// be percent-encoded there.
const uriEnds = " \t\r\n\"'`;,&|<>(){}[]$\\"

// findURIs are the URIs anywhere in an argument.
func findURIs(arg string) (out []span) {
	for at := 0; ; {
		i := strings.Index(arg[at:], uriStart)
		if i < 0 {
			return out
		}
		s := span{at + i, len(arg)}
		if n := strings.IndexAny(arg[s.from:], uriEnds); n >= 0 {
			s.to = s.from + n
		}
		out = append(out, s)
		at = s.to
	}
}

// substitute puts the directory in the place of {dir} and of URIs that name the revision.
func substitute(command []string, ref weight.Ref, dir string) []string {
	out := make([]string, len(command))
	for i, arg := range command {
		spans := findURIs(arg)
		if s, ok := wholeURI(arg); ok && names(arg[s.from:s.to], ref) {
			spans = []span{s}
		}
		var b strings.Builder
		at := 0
		for _, s := range spans {
			if names(arg[s.from:s.to], ref) {
				b.WriteString(arg[at:s.from] + dir)
				at = s.to
			}
		}
		b.WriteString(arg[at:])
		out[i] = strings.ReplaceAll(b.String(), "{dir}", dir)
	}
	return out
}

func names(uri string, ref weight.Ref) bool {
	r, err := weight.ParseURI(uri)
	return err == nil && r == ref
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
