// Storebench measures an embedded store beside what the machine itself can do with the same pattern. Both take turns in
// one run, and the ratio is that of their medians, so that a busy machine slows both. It judges nothing: a missed goal
// is printed, the exit code is 0.
//
// Shared memory of the store has the pages that the kernel gives to tmpfs; what it is compared with is mapped the same
// way. Rows that need more memory than there is are skipped and say so.
package main

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
	"time"

	"github.com/pkg/errors"
)

// row is a group of figures that share what they need.
type row struct {
	name, about string
	memory      int64 // most that it takes
	run         func(context.Context, *bench) error
}

var rows = []row{
	{"copy", "GetInto, Put and PutFrom of 1 to 64 MiB", 4 << 30, runCopy},
	{"view", "View of 4 KiB to 64 MiB", 1 << 30, runView},
	{"small", "Get of 4 KiB out of 2 GiB, ExistsBatch with few keys", 5 << 30, runSmall},
	{"churn", "tiny put and remove on two threads", 1 << 30, runChurn},
	{"keys", "10 M objects: metadata, GC, Get of 4 KiB, ExistsBatch", 9 << 30, runKeys},
	{"ssd", "durable put and read of 4 MiB", 2 << 30, runSSD},
	{"open", "a new segment of 8 GiB", 9 << 30, runOpen},
	{"reopen", "a directory with 1 M objects on SSD", 2 << 30, runReopen},
	{"rocksdb", "4 KiB, 64 KiB and 4 MiB in RocksDB", 3 << 30, runRocksDB},
}

type bench struct {
	quick   bool
	json    bool
	dir     string // for rows that need a disk
	rounds  int
	row     string
	results []result
}

// scale makes n smaller for --quick.
func (b *bench) scale(n int) int {
	if b.quick {
		return max(n/8, 1)
	}
	return n
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "storebench:", err)
		os.Exit(1)
	}
}

func run() error {
	b := new(bench)
	chosen := flag.String("rows", "all", "comma-separated `rows`: "+names())
	flag.BoolVar(&b.json, "json", false, "print one JSON object per figure")
	flag.BoolVar(&b.quick, "quick", false, "an eighth of the data and 3 rounds: figures are not to be trusted")
	flag.IntVar(&b.rounds, "rounds", 9, "rounds whose median is taken")
	flag.StringVar(&b.dir, "dir", "", "where to make a `directory` for the SSD tier (default the user's cache directory)")
	memory := flag.Float64("memory", 0, "skip rows that need more than this many `GiB`; 0 looks only at what is free")
	profile := flag.String("cpuprofile", "", "write a CPU profile to this `file`")
	flag.Parse()
	todo, err := choose(*chosen)
	if err != nil {
		return err
	}
	if b.quick {
		b.rounds = 3
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
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	b.printMachine()
	for _, r := range todo {
		if err := b.do(ctx, r, int64(*memory*(1<<30))); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) do(ctx context.Context, r row, limit int64) error {
	need := r.memory
	if b.quick {
		need = max(need/4, 1<<29)
	}
	if free := memAvailable(); need+1<<30 > free || limit > 0 && need > limit {
		b.note("\n%s: skipped, it needs %.1f GiB and 1 GiB to spare; %.1f GiB are available", r.name, gib(need), gib(free))
		return nil
	}
	before, start := loadAverage(), time.Now()
	b.row = r.name
	b.note("\n%s: %s", r.name, r.about)
	if err := r.run(ctx, b); err != nil {
		return errors.WithMessage(err, r.name)
	}
	b.note("  (%.0f s, load average %s before, %s after)", time.Since(start).Seconds(), before, loadAverage())
	debug.FreeOSMemory()
	return ctx.Err()
}

func choose(list string) (todo []row, err error) {
	if list == "all" {
		return rows, nil
	}
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(rows, func(r row) bool { return r.name == name })
		if i < 0 {
			return nil, errors.Errorf("no row %q; there are %s", name, names())
		}
		todo = append(todo, rows[i])
	}
	return todo, nil
}

func names() string {
	var s []string
	for _, r := range rows {
		s = append(s, r.name)
	}
	return strings.Join(s, ",")
}

func (b *bench) makeDir() (remove func(), err error) {
	if b.dir == "" {
		if b.dir, err = os.UserCacheDir(); err != nil {
			b.dir = os.TempDir()
		}
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return nil, err
	}
	if b.dir, err = os.MkdirTemp(b.dir, "storebench-"); err != nil {
		return nil, err
	}
	b.dir, err = filepath.Abs(b.dir)
	return func() { _ = os.RemoveAll(b.dir) }, err
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

func (b *bench) printMachine() {
	b.note("%s, %d cores, %s; %.1f GiB of memory available, load average %s; medians of %d rounds",
		runtime.Version(), runtime.NumCPU(), cpuName(), gib(memAvailable()), loadAverage(), b.rounds)
}

// note is for readers; with --json it goes to standard error.
func (b *bench) note(format string, args ...any) {
	out := os.Stdout
	if b.json {
		out = os.Stderr
	}
	fmt.Fprintf(out, format+"\n", args...)
}

func (b *bench) add(r result) {
	r.Row = b.row
	b.results = append(b.results, r)
	if b.json {
		_ = json.NewEncoder(os.Stdout).Encode(r)
		return
	}
	fmt.Println(r)
}
