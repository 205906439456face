// Package contest is what the benchmark programs share: rows of figures, each beside what the machine itself can do
// with the same pattern. Both take turns in one run, and a ratio is that of their medians, so that a busy machine slows
// both. Nothing is judged: a missed goal is printed, the exit code stays 0.
package contest

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pkg/errors"
)

// Row is a group of figures that share what they need.
type Row struct {
	Name, About string
	Memory      int64 // most that it takes, page cache included; a quarter of it with --quick
	Run         func(context.Context, *Bench) error
}

// Bench is one run of a benchmark program.
type Bench struct {
	Name    string
	Dir     string // for rows that need a disk; removed at the end
	Rounds  int
	Quick   bool
	Results []Result

	json   bool
	row    string
	memory float64
}

// Scale makes n smaller with --quick.
func (b *Bench) Scale(n int) int {
	if b.Quick {
		return max(n/8, 1)
	}
	return n
}

// Main parses the command line, to which the program may have added flags of its own, and runs the rows asked for.
func Main(name string, rows []Row) {
	if err := run(&Bench{Name: name}, rows); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

func run(b *Bench, rows []Row) error {
	chosen := flag.String("rows", "all", "comma-separated `rows`: "+names(rows))
	flag.BoolVar(&b.json, "json", false, "print one JSON object per figure")
	flag.BoolVar(&b.Quick, "quick", false, "an eighth of the data and 3 rounds: figures are not to be trusted")
	flag.IntVar(&b.Rounds, "rounds", 9, "rounds whose median is taken")
	flag.StringVar(&b.Dir, "dir", "", "where to make a `directory` for files (default the user's cache directory)")
	flag.Float64Var(&b.memory, "memory", 0, "skip rows that need more than this many `GiB`; 0 looks only at what is free")
	profile := flag.String("cpuprofile", "", "write a CPU profile to this `file`")
	flag.Parse()
	todo, err := choose(rows, *chosen)
	if err != nil {
		return err
	}
	if b.Quick {
		b.Rounds = 3
	}
	remove, err := b.makeDir()
	if err != nil {
		return err
	}
	defer remove()
	stop, err := profileTo(*profile)
	if err != nil {
		return err
	}
	defer stop()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	b.printMachine()
	for _, r := range todo {
		if err := b.do(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bench) do(ctx context.Context, r Row) error {
	need := r.Memory
	if b.Quick {
		need = max(need/4, 1<<29)
	}
	if free := MemAvailable(); need+1<<30 > free || b.memory > 0 && float64(need) > b.memory*(1<<30) {
		b.Note("\n%s: skipped, it needs %.1f GiB and 1 GiB to spare; %.1f GiB are available", r.Name, GiB(need), GiB(free))
		return nil
	}
	before, start := LoadAverage(), time.Now()
	b.row = r.Name
	b.Note("\n%s: %s", r.Name, r.About)
	if err := r.Run(ctx, b); err != nil {
		return errors.WithMessage(err, r.Name)
	}
	b.Note("  (%.0f s, load average %s before, %s after)", time.Since(start).Seconds(), before, LoadAverage())
	debug.FreeOSMemory()
	return ctx.Err()
}

func choose(rows []Row, list string) (todo []Row, err error) {
	if list == "all" {
		return rows, nil
	}
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(rows, func(r Row) bool { return r.Name == name })
		if i < 0 {
			return nil, errors.Errorf("no row %q; there are %s", name, names(rows))
		}
		todo = append(todo, rows[i])
	}
	return todo, nil
}

func names(rows []Row) string {
	var s []string
	for _, r := range rows {
		s = append(s, r.Name)
	}
	return strings.Join(s, ",")
}

func (b *Bench) makeDir() (remove func(), err error) {
	if b.Dir == "" {
		if b.Dir, err = os.UserCacheDir(); err != nil {
			b.Dir = os.TempDir()
		}
	}
	if err := os.MkdirAll(b.Dir, 0o755); err != nil {
		return nil, err
	}
	if b.Dir, err = os.MkdirTemp(b.Dir, b.Name+"-"); err != nil {
		return nil, err
	}
	b.Dir, err = filepath.Abs(b.Dir)
	return func() { _ = os.RemoveAll(b.Dir) }, err
}

func profileTo(name string) (stop func(), err error) {
	if name == "" {
		return func() {}, nil
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, err
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
		fmt.Fprintf(os.Stderr, "\nWhere the time went:  go tool pprof -top -nodecount=30 %s\n"+
			"Whose calls they were: go tool pprof -peek 'memmove|copyStream|futex' %s\n", name, name)
	}, nil
}

func (b *Bench) printMachine() {
	b.Note("%s, %d cores, %s; %.1f GiB of memory available, load average %s; medians of %d rounds",
		runtime.Version(), runtime.NumCPU(), CPUName(), GiB(MemAvailable()), LoadAverage(), b.Rounds)
}

// Contest is Run with the rounds asked for.
func (b *Bench) Contest(contenders ...Contender) ([]float64, error) {
	return Run(b.Rounds, contenders...)
}

// Note is for readers; with --json it goes to standard error.
func (b *Bench) Note(format string, args ...any) {
	out := os.Stdout
	if b.json {
		out = os.Stderr
	}
	_, _ = fmt.Fprintf(out, format+"\n", args...)
}

// Add prints a figure.
func (b *Bench) Add(r Result) {
	r.Row = b.row
	b.Results = append(b.Results, r)
	if b.json {
		_ = json.NewEncoder(os.Stdout).Encode(r)
		return
	}
	fmt.Println(r)
}
