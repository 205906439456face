package cli

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/weight"
)

// watch shows how far an import is: a bar on a terminal, a line now and then and at the end elsewhere, nothing with
// --json.
func (c *cli) watch(i *weight.Import) (stop func(ok bool)) {
	if c.json {
		return func(bool) {}
	}
	terminal := isTerminal(c.err)
	every := 5 * time.Second
	if terminal {
		every = 100 * time.Millisecond
		c.show(i.Progress(), terminal)
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				c.show(i.Progress(), terminal)
			case <-quit:
				return
			}
		}
	}()
	return func(ok bool) {
		close(quit)
		<-done
		if ok {
			c.show(i.Progress(), terminal)
		}
		if terminal {
			fmt.Fprint(c.err, "\r\x1b[K")
		}
	}
}

const barWidth = 30

func (c *cli) show(p weight.Progress, terminal bool) {
	done := min(max(p.BytesDone, p.BytesRead), p.Bytes)
	share := 0.0
	if p.Bytes > 0 {
		share = float64(done) / float64(p.Bytes)
	}
	rate := float64(p.BytesRead) / max(p.Elapsed.Seconds(), 1e-3)
	left := "?"
	if rate > 0 {
		left = (time.Duration(float64(p.Bytes-done)/rate) * time.Second).String()
	}
	if !terminal {
		fmt.Fprintf(c.err, "%s: %d of %d files, %s of %s, %s/s, %s left\n", p.Phase, p.FilesDone, p.Files, size(done), size(p.Bytes),
			size(int64(rate)), left)
		return
	}
	full := int(share * barWidth)
	fmt.Fprintf(c.err, "\r\x1b[K%-9s [%s%s] %3.0f%%  %s of %s  %s/s  %s left", p.Phase, strings.Repeat("=", full),
		strings.Repeat(" ", barWidth-full), share*100, size(done), size(p.Bytes), size(int64(rate)), left)
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// plain is a text from outside for a terminal: quoted if it holds what does more than print.
func plain(s string) string {
	if strings.ContainsFunc(s, func(c rune) bool { return !unicode.IsPrint(c) }) || !utf8.ValidString(s) {
		return strconv.Quote(s)
	}
	return s
}

// size is a number of bytes for people.
func size(n int64) string {
	const units = "KMGTP"
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	v, u := float64(n), -1
	for v >= 1000 && u < len(units)-1 {
		v /= 1000
		u++
	}
	return fmt.Sprintf("%.1f %cB", v, units[u])
}
