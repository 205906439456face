package main

import (
	"bufio"
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/examples/contest"
)

//go:embed loader.py
var loaderScript string

// loader is a process with the stock loader.
type loader struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startLoader(ctx context.Context, python string) (*loader, error) {
	l := &loader{cmd: exec.CommandContext(ctx, python, "-c", loaderScript)}
	l.cmd.Stderr = os.Stderr
	var err error
	if l.in, err = l.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	l.out = bufio.NewScanner(out)
	if err := l.cmd.Start(); err != nil {
		return nil, err
	}
	if !l.out.Scan() {
		return nil, errors.WithMessagef(errors.Errorf("%v", l.cmd.Wait()), "%s has no safetensors or numpy", python)
	}
	return l, nil
}

func (l *loader) end() {
	_ = l.in.Close()
	_ = l.cmd.Wait()
}

// ask tells the process what to do and returns the seconds that it took.
func (l *loader) ask(verb, dir string) (float64, error) {
	if _, err := fmt.Fprintf(l.in, "%s %s\n", verb, dir); err != nil {
		return 0, err
	}
	if !l.out.Scan() {
		return 0, errors.Errorf("the loader ended: %v", l.out.Err())
	}
	return strconv.ParseFloat(strings.TrimSpace(l.out.Text()), 64)
}

func (b *bench) runLoader(ctx context.Context, c *contest.Bench) error {
	one, err := startLoader(ctx, b.python)
	if err != nil {
		c.Note("  skipped: %v; give one with --python", err)
		return nil
	}
	defer one.end()
	two, err := startLoader(ctx, b.python)
	if err != nil {
		return err
	}
	defer two.end()
	w, err := openWeights(ctx, filepath.Join(c.Dir, "loader"), spare)
	if err != nil {
		return err
	}
	defer w.end()
	if _, err := w.Import(ctx, sourceRequest(b.made)); err != nil {
		return err
	}
	l, err := w.Load(ctx, ref, nil)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	m, err := c.Contest(
		func() (float64, error) { return one.ask("load", l.Dir()) },
		func() (float64, error) { return one.ask("load", b.made.dir) })
	if err != nil {
		return err
	}
	c.Add(contest.Result{Case: "safetensors on the loaded directory", Unit: "s", Value: m[0]}.
		Than(m[1], "on the originals").AtMost(1.05))
	return b.mappedTwice(c, one, two, l.Dir())
}

// mappedTwice lets two processes hold the same files: what each maps counts once in the two together.
func (b *bench) mappedTwice(c *contest.Bench, one, two *loader, dir string) error {
	base := one.pss() + two.pss()
	for _, l := range []*loader{one, two} {
		if _, err := l.ask("hold", dir); err != nil {
			return err
		}
	}
	mapped := float64(one.pss()+two.pss()-base) / float64(b.made.bytes)
	c.Add(contest.Result{Case: "two loaders' memory for the files", Unit: "x of them", Value: mapped,
		Note: "proportional set size of the mapped files"}.Want("once", mapped < 1.1))
	for _, l := range []*loader{one, two} {
		if _, err := l.ask("drop", ""); err != nil {
			return err
		}
	}
	return nil
}

// pss is the process's share of the files that it maps.
func (l *loader) pss() int64 {
	pid := strconv.Itoa(l.cmd.Process.Pid)
	return contest.Rollup(pid, "Pss_File") + contest.Rollup(pid, "Pss_Shmem")
}
