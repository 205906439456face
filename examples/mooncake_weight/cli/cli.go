// Package cli is the command line of mooncake_weight, mooncake_weight_import and mooncake_weight_check.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/kvcache-ai/mooncake-go/store"
	"github.com/kvcache-ai/mooncake-go/weight"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // what was asked for does not hold, or could not be done
	exitUsage  = 2
)

const usageText = `usage: mooncake_weight COMMAND [flags]

  import  --model-id ID --revision REV --source DIR   import a model directory
  check   --model-id ID --revision REV [--deep]       check that a revision is whole
  list    [--model-id ID]                             list revisions
  load    [--model-id ID --revision REV] [-- COMMAND] make a directory an engine can open, and start the engine:
          mooncake-weight://ID/REV and {dir} in COMMAND stand for the directory; what is special to a
          shell in ID or REV is percent-encoded when the URI is a part of a longer text
  delete  --model-id ID --revision REV                delete a revision that nobody has loaded
  abort   --model-id ID --revision REV                remove an unfinished import
  usage                                               bytes of each revision, shared ones told apart
  repair                                              open a damaged store with what verifies, and say what that is
  shm [--free [PATH ...]]                             list shared memory that stores hold or have left; free what is
          abandoned, or the given paths also where nothing tells whether their store is gone

The store is --dir, else MOONCAKE_DIR, else "mooncake" in the user's data directory. "COMMAND -h" lists the flags.
`

// cli is one run of the program.
type cli struct {
	out, err io.Writer
	flags    *flag.FlagSet

	dir     string
	memory  int64
	json    bool
	modelID string
	rev     string
	q       weight.ImportRequest
	deep    bool
	verify  bool
	shmDir  string
	free    bool
	user    string
	include list
	exclude list
}

type list []string

func (l *list) String() string     { return strings.Join(*l, ",") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

// Main runs the program and returns its exit code: 0 only when what was asked for holds.
func Main(program string, args []string, out, errOut io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(errOut, usageText)
		return exitUsage
	}
	if args[0] == "-h" || args[0] == "--help" || args[0] == "help" {
		fmt.Fprint(out, usageText)
		return exitOK
	}
	run, ok := map[string]func(*cli, context.Context) error{
		"import": (*cli).runImport, "check": (*cli).runCheck, "list": (*cli).runList, "load": (*cli).runLoad,
		"delete": (*cli).runDelete, "abort": (*cli).runAbort, "usage": (*cli).runUsage,
		"shm":    (*cli).runShm,
		"repair": (*cli).runRepair,
	}[args[0]]
	if !ok {
		fmt.Fprintf(errOut, "%s: unknown command %q\n\n%s", filepath.Base(program), args[0], usageText)
		return exitUsage
	}
	c := &cli{out: out, err: errOut}
	c.defineFlags(filepath.Base(program)+" "+args[0], args[0])
	if err := c.flags.Parse(args[1:]); errors.Is(err, flag.ErrHelp) {
		return exitOK
	} else if err != nil {
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(c, ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errUsage):
		c.fail(err)
		c.flags.Usage()
		return exitUsage
	}
	c.fail(err)
	return exitFailed
}

var errUsage = errors.New("usage")

// reportedError is a failure that the output for machines has told already.
type reportedError struct{ error }

func (e reportedError) Unwrap() error { return e.error }

func (c *cli) fail(err error) {
	var reported reportedError
	if c.json && !errors.As(err, &reported) {
		_ = json.NewEncoder(c.out).Encode(map[string]any{"ok": false, "error": err.Error(), "code": store.Code(err)})
	}
	fmt.Fprintf(c.err, "%s: %v\n", c.flags.Name(), err)
}

func (c *cli) defineFlags(name, command string) {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(c.err)
	c.flags = f
	if command == "shm" {
		f.BoolVar(&c.json, "json", false, "output for machines")
		f.BoolVar(&c.free, "free", false, "free what is abandoned, or the paths given as arguments")
		f.StringVar(&c.shmDir, "shm-dir", "/dev/shm", "tmpfs that the stores use")
		return
	}
	f.StringVar(&c.dir, "dir", "", "directory of the store (default $MOONCAKE_DIR, else the user's data directory)")
	f.Int64Var(&c.memory, "memory", 64<<20, "memory budget of the store in bytes")
	f.BoolVar(&c.json, "json", false, "output for machines")
	if command != "usage" && command != "repair" {
		f.StringVar(&c.modelID, "model-id", "", "model id, such as org/name")
	}
	if command != "usage" && command != "list" && command != "repair" {
		f.StringVar(&c.rev, "revision", "", "revision, any name without a slash")
	}
	switch command {
	case "import":
		f.StringVar(&c.q.Source, "source", "", "model directory or file:// URI")
		f.Var(&c.include, "include", "pattern of files to take that are left out otherwise, such as 'onnx/'; may be repeated")
		f.Var(&c.exclude, "exclude", "pattern of files to leave out; beats --include; may be repeated")
		f.BoolVar(&c.q.Code, "code", false, "no effect: the model's Python files are always taken")
		f.BoolVar(&c.q.FollowLinks, "follow-links", false, "take what symbolic links out of the source lead to")
		f.BoolVar(&c.q.Unpinned, "unpinned", false, "let the store evict the revision")
		f.IntVar(&c.q.Parallel, "parallel", 0, "files read at a time (default 2)")
	case "check":
		f.BoolVar(&c.deep, "deep", false, "read every byte and compare it with the manifest")
	case "load":
		f.BoolVar(&c.verify, "verify", false, "read every byte and compare it with the manifest first")
		f.StringVar(&c.user, "user", "", "another user who may read the directory, by name or number (default: the one that COMMAND changes to by sudo, su, runuser, setpriv, gosu, ...)")
	}
}

// ref is the revision that the flags name.
func (c *cli) ref() (weight.Ref, error) {
	var missing []string
	if c.modelID == "" {
		missing = append(missing, "--model-id")
	}
	if c.rev == "" {
		missing = append(missing, "--revision")
	}
	switch len(missing) {
	case 1:
		return weight.Ref{}, fmt.Errorf("%w: %s is missing", errUsage, missing[0])
	case 2:
		return weight.Ref{}, fmt.Errorf("%w: %s are missing", errUsage, strings.Join(missing, " and "))
	}
	ref := weight.Ref{ModelID: c.modelID, Revision: c.rev}
	if err := ref.Validate(); err != nil {
		return ref, fmt.Errorf("%w: %w", errUsage, err)
	}
	return ref, nil
}

// noArgs refuses what follows the flags of a command that takes nothing more.
func (c *cli) noArgs() error {
	if c.flags.NArg() > 0 {
		return fmt.Errorf("%w: unexpected argument %q", errUsage, c.flags.Arg(0))
	}
	return nil
}

// directory is the store's: the flag, the environment, the user's data directory. chosen is false for the last.
func (c *cli) directory() (dir string, chosen bool, err error) {
	if c.dir != "" {
		return c.dir, true, nil
	}
	if dir := os.Getenv("MOONCAKE_DIR"); dir != "" {
		return dir, true, nil
	}
	if data := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(data) {
		return filepath.Join(data, "mooncake"), false, nil
	}
	home, err := os.UserHomeDir()
	if err == nil && (!filepath.IsAbs(home) || filepath.Clean(home) == "/") { // as services and containers have it
		err = fmt.Errorf("HOME is %q", home)
	}
	if err != nil {
		return "", false, fmt.Errorf("no directory for the store: %w; %s", err, nameDirectory)
	}
	return filepath.Join(home, ".local", "share", "mooncake"), false, nil
}

const nameDirectory = "name one with --dir or MOONCAKE_DIR"

// weights opens the store and its revisions. close must be called.
func (c *cli) weights(ctx context.Context) (m *weight.Manager, closeAll func() error, err error) {
	dir, chosen, err := c.directory()
	if err != nil {
		return nil, nil, err
	}
	s, err := store.Open(ctx, store.Options{Dir: dir, MemoryBytes: c.memory, VolatileMemory: true})
	if err != nil {
		if !chosen && !errors.Is(err, store.ErrLocked) {
			err = fmt.Errorf("%w; %s", err, nameDirectory)
		}
		return nil, nil, err
	}
	m, err = weight.Open(ctx, s, weight.Options{})
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return m, func() error { return errors.Join(m.Close(), s.Close()) }, nil
}

// with runs fn on the opened revisions.
func (c *cli) with(ctx context.Context, fn func(*weight.Manager) error) (err error) {
	m, closeAll, err := c.weights(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	return fn(m)
}

func (c *cli) printJSON(v any) error {
	e := json.NewEncoder(c.out)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
