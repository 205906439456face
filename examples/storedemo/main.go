// Storedemo shows an embedded store on real files: it puts every file below a directory, reads all of them back and
// compares them with what was read from disk, closes the store, opens it again and compares once more. It then hands
// the largest object out as a view and as a file. It exits with 0 only when every byte was right.
//
//	storedemo [flags] DIRECTORY
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/pkg/errors"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kvcache-ai/mooncake-go/store"
	"github.com/kvcache-ai/mooncake-go/store/metrics"
)

type config struct {
	source, dir string
	memory      int64
	keep        bool
	metrics     string
}

func main() {
	c, err := parse()
	if err != nil {
		fmt.Fprintln(os.Stderr, "storedemo:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c); err != nil {
		fmt.Fprintln(os.Stderr, "storedemo:", err)
		os.Exit(1)
	}
}

func parse() (c config, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: storedemo [flags] DIRECTORY\n\nFlags:")
		flag.PrintDefaults()
	}
	flag.StringVar(&c.dir, "dir", filepath.Join(cache, "mooncake-go", "storedemo"), "`directory` of the store")
	memory := flag.Int64("memory", 1024, "memory budget in `MiB`")
	flag.BoolVar(&c.keep, "keep", false, "leave the store's directory and its shared memory")
	flag.StringVar(&c.metrics, "metrics", "", "serve Prometheus metrics at this `address`, then wait for Ctrl-C at the end")
	flag.Parse()
	c.memory = *memory << 20
	if flag.NArg() != 1 {
		flag.Usage()
		return c, errors.New("which directory?")
	}
	c.source, err = filepath.Abs(flag.Arg(0))
	return c, err
}

// demo is one run.
type demo struct {
	config
	mu     sync.Mutex // s is read by the metrics' server
	s      *store.Store
	files  []file
	shared string // directory in shared memory
	clean  func() error
}

func run(ctx context.Context, c config) (err error) {
	d := &demo{config: c}
	if err := d.scan(ctx); err != nil {
		return err
	}
	if err := d.prepareDir(); err != nil {
		return err
	}
	defer func() {
		if e := d.end(); err == nil {
			err = e
		}
	}()
	if err := d.open(ctx); err != nil {
		return err
	}
	wait, err := d.serve(ctx)
	if err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{d.put, d.readAll, d.sync, d.reopen, d.readAll, d.lend} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	fmt.Println("\nEvery byte was right.")
	wait()
	return nil
}

// prepareDir makes the directory, and decides what end removes: only what this run has made.
func (d *demo) prepareDir() error {
	entries, err := os.ReadDir(d.dir)
	if err == nil && len(entries) > 0 {
		d.clean = func() error {
			fmt.Printf("\n%s was there before: kept, with its shared memory %s\n", d.dir, d.shared)
			return nil
		}
		return nil
	}
	if err != nil && !os.IsNotExist(err) {
		return errors.WithMessage(err, "directory of the store")
	}
	d.clean = func() error {
		if d.keep {
			fmt.Printf("\nKept: %s and %s\n", d.dir, d.shared)
			return nil
		}
		return d.remove()
	}
	return os.MkdirAll(d.dir, 0o755)
}

func (d *demo) remove() error {
	if d.shared != "" {
		if err := os.RemoveAll(d.shared); err != nil {
			return errors.WithMessage(err, "clean up")
		}
	}
	if err := os.RemoveAll(d.dir); err != nil {
		return errors.WithMessage(err, "clean up")
	}
	fmt.Printf("\nRemoved the store's directory %s and its shared memory; --keep leaves them.\n", d.dir)
	return nil
}

func (d *demo) end() error {
	if d.s != nil {
		if err := d.s.Close(); err != nil {
			return errors.WithMessage(err, "close")
		}
	}
	return d.clean()
}

func (d *demo) open(ctx context.Context) error {
	start := time.Now()
	s, err := store.Open(ctx, store.Options{Dir: d.dir, MemoryBytes: d.memory})
	if err != nil {
		return err
	}
	took := time.Since(start)
	d.use(s)
	u, err := s.Usage()
	if err != nil {
		return err
	}
	d.shared = filepath.Dir(u.SharedMemory)
	c := s.Counters()
	fmt.Printf("\nOpened %s in %s: memory %s in %s, SSD up to %s", d.dir, short(took), size(u.MemoryBudget), d.shared,
		size(u.SSDLimit))
	if n := total(&u); n > 0 {
		fmt.Printf(";\n  %s came back: %d in memory, %d on SSD", objects(n), c.RestoredFromMemory, c.RestoredFromSSD)
	}
	fmt.Println()
	return nil
}

func (d *demo) use(s *store.Store) {
	d.mu.Lock()
	d.s = s
	d.mu.Unlock()
}

// serve answers Prometheus while the demo runs. wait is for the end: it keeps serving until Ctrl-C.
func (d *demo) serve(ctx context.Context) (wait func(), err error) {
	if d.metrics == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", d.metrics)
	if err != nil {
		return nil, errors.WithMessage(err, "metrics")
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(metrics.New(current{d}, nil))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }() // ends with Close
	fmt.Printf("Metrics at http://%s/metrics\n", l.Addr())
	return func() {
		fmt.Println("Serving metrics until Ctrl-C.")
		<-ctx.Done()
		_ = server.Close()
	}, nil
}
