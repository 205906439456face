package weight

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store"
)

const jobEnv = "WEIGHT_TEST_CHILD"

func TestMain(m *testing.M) {
	if job := os.Getenv(jobEnv); job != "" {
		if err := child(job, os.Args[1:]); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is what this test's program does as a process of its own.
func child(job string, args []string) error {
	switch job {
	case "hold": // an engine: lives until its input ends, with what it inherited
		fmt.Println("holding")
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	case "load": // loads, starts an engine, and dies by the hand of the test
		return childLoad(args[0], args[1] == "inherit")
	case "exec": // turns into a launcher that starts an engine
		return childExec(args[0], args[1])
	case "work":
		return childWork(args)
	case "import":
		return childImport(args[0], args[1])
	}
	return fmt.Errorf("no job %q", job)
}

func childOpen(dir string) (*Manager, *store.Store, error) {
	ctx := context.Background()
	s, err := store.Open(ctx, store.Options{Dir: dir, MemoryBytes: 32 << 20, VolatileMemory: true})
	if err != nil {
		return nil, nil, err
	}
	m, err := Open(ctx, s, Options{})
	return m, s, err
}

func childLoad(dir string, inherit bool) error {
	m, _, err := childOpen(dir)
	if err != nil {
		return err
	}
	l, err := m.Load(context.Background(), ref, nil)
	if err != nil {
		return err
	}
	engine := exec.Command(os.Args[0])
	engine.Env = append(os.Environ(), jobEnv+"=hold")
	engine.Stdin = os.Stdin
	engine.Stderr = os.Stderr
	out, err := engine.StdoutPipe()
	if err != nil {
		return err
	}
	if inherit {
		engine.ExtraFiles = []*os.File{l.LockFile()}
	}
	if err := engine.Start(); err != nil {
		return err
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return err
	}
	fmt.Println(engine.Process.Pid, l.Dir())
	select {}
}

// process is a child with its first line of output.
type process struct {
	*exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Reader
}

func start(t testing.TB, job string, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(os.Args[0], args...)}
	p.Env = append(os.Environ(), jobEnv+"="+job)
	p.Stderr = os.Stderr
	var err error
	p.stdin, err = p.StdinPipe()
	require.NoError(t, err)
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	p.lines = bufio.NewReader(out)
	require.NoError(t, p.Start())
	return p
}

func (p *process) line(t testing.TB) string {
	t.Helper()
	s, err := p.lines.ReadString('\n')
	require.NoError(t, err, "output %q", s)
	return strings.TrimSpace(s)
}

// kill ends the process as a crash would. Its input stays open, for children of its own.
func (p *process) kill() {
	_ = p.Process.Signal(syscall.SIGKILL)
	_, _ = p.Process.Wait()
}
