//go:build !norocksdb

package cli

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/weight"
)

var bin string // directory of the built programs

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "mooncake-cli-")
	if err == nil {
		bin = dir
		var out []byte
		build := exec.Command("go", "build", "-o", dir, "../../mooncake_weight", "../../mooncake_weight_import", "../../mooncake_weight_check")
		if out, err = build.CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// model writes n shards of size bytes and a configuration.
func model(t *testing.T, n, size int) string {
	t.Helper()
	dir := t.TempDir()
	for i := range n {
		h := fmt.Sprintf(`{"t%d":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, i, size, size)
		p := append(binary.LittleEndian.AppendUint64(nil, uint64(len(h))), h...)
		p = append(p, bytes.Repeat([]byte{byte(i + 1)}, size)...)
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("m-%02d.safetensors", i)), p, 0o644))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o644))
	return dir
}

type result struct {
	code     int
	out, err string
}

// run runs a program with the store in dir.
func run(t *testing.T, dir, program string, args ...string) result {
	t.Helper()
	c := exec.Command(filepath.Join(bin, program), args...)
	c.Env = append(os.Environ(), "MOONCAKE_DIR="+dir)
	var out, errOut bytes.Buffer
	c.Stdout, c.Stderr = &out, &errOut
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{c.ProcessState.ExitCode(), out.String(), errOut.String()}
}

func parse(t *testing.T, r result) (v map[string]any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(r.out))
	require.NoError(t, d.Decode(&v), "%+v", r)
	require.False(t, d.More(), "one value: %s", r.out)
	return v
}

func revision(m, r string) []string { return []string{"--model-id", m, "--revision", r} }

func with(args []string, more ...string) []string {
	return append(append([]string(nil), args...), more...)
}

func TestProgramsRoundTrip(t *testing.T) {
	dir, src := t.TempDir(), model(t, 2, 2<<20)
	ref := revision("org/m", "1")
	r := run(t, dir, "mooncake_weight_import", with(ref, "--source", src)...)
	require.Equal(t, 0, r.code, "%+v", r)
	require.Contains(t, r.out, "mooncake-weight://org/m/1 is READY: 3 files")
	require.NotContains(t, r.err, "\x1b", "no bar where there is no terminal")
	require.Contains(t, r.err, "3 of 3 files", "but lines")

	r = run(t, dir, "mooncake_weight_import", with(ref, "--source", "file://"+src, "--json")...)
	require.Equal(t, 0, r.code, "%+v", r)
	v := parse(t, r)
	require.Equal(t, true, v["ok"])
	require.Equal(t, true, v["result"].(map[string]any)["existed"])
	require.Empty(t, r.err)

	for _, deep := range [][]string{nil, {"--deep"}} {
		r = run(t, dir, "mooncake_weight_check", with(ref, deep...)...)
		require.Equal(t, 0, r.code, "%+v", r)
		require.Contains(t, r.out, "m-01.safetensors")
		r = run(t, dir, "mooncake_weight", append([]string{"check", "--json"}, with(ref, deep...)...)...)
		require.Equal(t, 0, r.code)
		require.Equal(t, true, parse(t, r)["ok"])
	}

	r = run(t, dir, "mooncake_weight", "list")
	require.Equal(t, 0, r.code)
	require.Contains(t, r.out, "org/m")
	require.Contains(t, r.out, "READY")
	r = run(t, dir, "mooncake_weight", "list", "--json")
	var list []weight.Summary
	require.NoError(t, json.Unmarshal([]byte(r.out), &list))
	require.Equal(t, weight.Ref{ModelID: "org/m", Revision: "1"}, list[0].Ref)
	r = run(t, dir, "mooncake_weight", "list", "--json", "--model-id", "other")
	require.Equal(t, "[]\n", r.out)

	r = run(t, dir, "mooncake_weight", "usage")
	require.Equal(t, 0, r.code)
	require.Contains(t, r.out, "4.2 MB")
	r = run(t, dir, "mooncake_weight", "usage", "--json")
	require.InDelta(t, 4<<20, parse(t, r)["total"], 1000)

	r = run(t, dir, "mooncake_weight", with([]string{"load", "--json"}, with(ref, "--", "cat", "{dir}/config.json")...)...)
	require.Equal(t, result{0, "{}", ""}, r)

	require.NoError(t, os.WriteFile(filepath.Join(src, "config.json"), []byte("{ }"), 0o644))
	r = run(t, dir, "mooncake_weight", with([]string{"import", "--source", src}, ref...)...)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.err, "config.json")

	r = run(t, dir, "mooncake_weight", with([]string{"abort"}, ref...)...)
	require.Equal(t, 1, r.code)
	r = run(t, dir, "mooncake_weight", with([]string{"delete", "--json"}, ref...)...)
	require.Equal(t, 0, r.code)
	require.Equal(t, true, parse(t, r)["ok"])
	for _, command := range []string{"delete", "check", "load", "abort"} {
		r = run(t, dir, "mooncake_weight", with([]string{command, "--json"}, ref...)...)
		require.Equal(t, 1, r.code, command)
		require.Contains(t, r.err, "org/m@1")
		require.Equal(t, false, parse(t, r)["ok"])
	}
}

func TestProgramsUsage(t *testing.T) {
	dir := t.TempDir()
	for _, args := range [][]string{
		{}, {"nothing"}, {"import"}, {"import", "--model-id", "m"}, {"import", "--model-id", "m", "--revision", "1"},
		{"check", "--revision", "1"}, {"check", "--model-id", "m", "--revision", "a/b"}, {"load"}, {"delete"}, {"abort"},
		{"list", "extra"}, {"usage", "--model-id", "m"}, {"check", "--bogus"}, {"load", "--", "true"},
		{"load", "--", "x", "mooncake-weight://"}, {"import", "--source", "/", "--model-id", "m", "--revision", "1", "extra"},
	} {
		r := run(t, dir, "mooncake_weight", args...)
		require.Equal(t, 2, r.code, "%q: %+v", args, r)
		require.NotEmpty(t, r.err, "%q", args)
		require.Empty(t, r.out, "%q", args)
	}
	r := run(t, dir, "mooncake_weight_import", "--model-id", "m")
	require.Equal(t, 2, r.code)
	require.Contains(t, r.err, "--revision")
	r = run(t, dir, "mooncake_weight_check")
	require.Equal(t, 2, r.code)
	require.Contains(t, r.err, "--model-id and --revision")
	for _, help := range [][]string{{"help"}, {"-h"}, {"--help"}, {"import", "-h"}, {"load", "--help"}} {
		r = run(t, dir, "mooncake_weight", help...)
		require.Equal(t, 0, r.code, "%q", help)
		require.Contains(t, r.err+r.out, "model-id", "%q", help)
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "wrong use makes no store")
}

// TestProgramsDamage flips a byte: check and load name the file, once, and fail.
func TestProgramsDamage(t *testing.T) {
	dir, src := t.TempDir(), model(t, 1, 2<<20)
	ref := revision("m", "1")
	require.Equal(t, 0, run(t, dir, "mooncake_weight_import", with(ref, "--source", src)...).code)
	own, err := filepath.Glob(filepath.Join(dir, "ssd", "*.obj"))
	require.NoError(t, err)
	require.Len(t, own, 1)
	f, err := os.OpenFile(own[0], os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{0xff}, 1<<20)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	r := run(t, dir, "mooncake_weight_check", with(ref, "--deep", "--json")...)
	require.Equal(t, 1, r.code)
	require.Equal(t, false, parse(t, r)["ok"])
	require.Contains(t, r.err, "m-00.safetensors")
	r = run(t, dir, "mooncake_weight_check", with(ref, "--deep")...)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.out, "m-00.safetensors")
	r = run(t, dir, "mooncake_weight", with([]string{"load"}, with(ref, "--", "echo", "started")...)...)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.err, "m-00.safetensors")
	require.NotContains(t, r.out, "started")
}

func TestProgramsDirectory(t *testing.T) {
	src := model(t, 1, 1000)
	args := with([]string{"import", "--source", src}, revision("m", "1")...)
	for _, c := range []struct {
		env  []string
		flag string
		at   string
	}{
		{[]string{"MOONCAKE_DIR=ROOT/env"}, "ROOT/flag", "flag"}, {[]string{"MOONCAKE_DIR=ROOT/env", "XDG_DATA_HOME=ROOT/x"}, "", "env"},
		{[]string{"XDG_DATA_HOME=ROOT/x", "HOME=ROOT/h"}, "", "x/mooncake"}, {[]string{"HOME=ROOT/h"}, "", "h/.local/share/mooncake"},
		{[]string{"XDG_DATA_HOME=relative", "HOME=ROOT/h"}, "", "h/.local/share/mooncake"},
	} {
		root := t.TempDir()
		cmd := exec.Command(filepath.Join(bin, "mooncake_weight"), args...)
		if c.flag != "" {
			cmd.Args = append(cmd.Args, "--dir", strings.ReplaceAll(c.flag, "ROOT", root))
		}
		for _, v := range c.env {
			cmd.Env = append(cmd.Env, strings.ReplaceAll(v, "ROOT", root))
		}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.DirExists(t, filepath.Join(root, c.at, "ssd"))
	}
}

// TestProgramsNoDirectory has no place for a store by default: the error names what chooses one.
func TestProgramsNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f") // root can write everywhere else
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, env := range [][]string{{}, {"HOME="}, {"HOME=/"}, {"HOME=//"}, {"HOME=relative"}, {"HOME=" + file}, {"HOME=/proc/none"}, {"XDG_DATA_HOME=" + file}} {
		for _, program := range []string{"mooncake_weight list", "mooncake_weight_check --model-id m --revision 1", "mooncake_weight_import --model-id m --revision 1 --source ."} {
			args := strings.Fields(program)
			cmd := exec.Command(filepath.Join(bin, args[0]), args[1:]...)
			cmd.Env = env
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "%q %s", env, out)
			require.Contains(t, string(out), "--dir", "%q", env)
			require.Contains(t, string(out), "MOONCAKE_DIR", "%q", env)
		}
	}
	require.NoDirExists(t, "/.local/share/mooncake")
}

// TestProgramsLoad starts commands from a loaded revision.
func TestProgramsLoad(t *testing.T) {
	dir, src := t.TempDir(), model(t, 2, 1<<20)
	require.Equal(t, 0, run(t, dir, "mooncake_weight_import", with(revision("org/m", "1"), "--source", src)...).code)
	at := filepath.Join(dir, "loads", "org--m--1")
	const uri = "mooncake-weight://org/m/1"
	for _, c := range []struct {
		args []string
		out  string
	}{
		{[]string{"--", "echo", uri}, at}, {[]string{"--", "echo", "--model=" + uri, "-x"}, "--model=" + at + " -x"},
		{[]string{"--", "sh", "-c", "echo serve " + uri + " --port 80"}, "serve " + at + " --port 80"},
		{[]string{"--", "sh", "-c", "echo '" + uri + "';echo " + uri + ";"}, at + "\n" + at},
		{[]string{"--", "sh", "-c", "ls $0 | wc -l", uri}, "3"},
		{[]string{"--", "sh", "-c", `cmp "$0/m-00.safetensors" "$1/m-00.safetensors" && echo same`, uri, src}, "same"},
		{[]string{"--", "echo", "mooncake-weight://org%2Fm/1"}, at},
		{[]string{"--model-id", "org/m", "--revision", "1", "--", "echo", "{dir}/x", "a{dir}", uri, "mooncake-weight://other/1"},
			at + "/x a" + at + " " + at + " mooncake-weight://other/1"},
		{[]string{"--", "echo", uri, uri + "0", uri + "/2", "{}"}, at + " " + uri + "0 " + uri + "/2 {}"},
		{[]string{"--verify", "--", "sh", "-c", "cat {dir}/config.json; : " + uri}, "{}"},
		{[]string{"--", "echo", `{"model": "` + uri + `"}`}, `{"model": "` + at + `"}`},
	} {
		r := run(t, dir, "mooncake_weight", append([]string{"load"}, c.args...)...)
		require.Equal(t, 0, r.code, "%q: %+v", c.args, r)
		require.Equal(t, c.out, strings.TrimSpace(r.out), "%q", c.args)
	}
	r := run(t, dir, "mooncake_weight", "load", "--", "sh", "-c", "exit 37", uri)
	require.Equal(t, 37, r.code)
	r = run(t, dir, "mooncake_weight", "load", "--", "/no/such/program", uri)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.err, "/no/such/program")
	r = run(t, dir, "mooncake_weight", "load", "--", "echo", "mooncake-weight://org/m/2")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.err, "org/m@2")
	require.Equal(t, 0, run(t, dir, "mooncake_weight", "list").code)
	left, err := os.ReadDir(filepath.Join(dir, "loads"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestProgramsEngine starts an engine that lives: other processes can use the store, the revision can't be deleted, a
// signal to the program's pid is the engine's.
func TestProgramsEngine(t *testing.T) {
	dir, src := t.TempDir(), model(t, 1, 1<<20)
	ref := revision("m", "1")
	require.Equal(t, 0, run(t, dir, "mooncake_weight_import", with(ref, "--source", src)...).code)
	c := exec.Command(filepath.Join(bin, "mooncake_weight"), "load", "--dir", dir, "--", "sh", "-c",
		`trap 'echo got; exit 9' TERM; echo up $$; while :; do sleep 0.02; done`, "mooncake-weight://m/1")
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	line := make([]byte, 64)
	n, err := out.Read(line)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("up %d", c.Process.Pid), strings.TrimSpace(string(line[:n])), "the engine has the program's pid")

	at := filepath.Join(dir, "loads", "m--1")
	r := run(t, dir, "mooncake_weight", with([]string{"delete"}, ref...)...)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.err, "pid "+strconv.Itoa(c.Process.Pid))
	r = run(t, dir, "mooncake_weight", "list", "--json")
	var list []weight.Summary
	require.NoError(t, json.Unmarshal([]byte(r.out), &list))
	require.Equal(t, c.Process.Pid, list[0].InUse[0].PID)
	require.FileExists(t, filepath.Join(at, "m-00.safetensors"))
	r = run(t, dir, "mooncake_weight", "load", "--", "ls", "mooncake-weight://m/1")
	require.Equal(t, "config.json\nm-00.safetensors\n", r.out)
	require.FileExists(t, filepath.Join(at, "m-00.safetensors"), "the second engine's end is not the first's")

	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	n, err = out.Read(line)
	require.NoError(t, err)
	require.Equal(t, "got", strings.TrimSpace(string(line[:n])))
	_ = c.Wait()
	require.Equal(t, 9, c.ProcessState.ExitCode())
	require.Eventually(t, func() bool { return run(t, dir, "mooncake_weight", with([]string{"delete"}, ref...)...).code == 0 }, 5*time.Second, 10*time.Millisecond)
	require.NoDirExists(t, at)
}

// TestProgramsOtherUser starts the engine as somebody else: known from the command, or named. What it needs is made
// readable, whatever the umask, or the engine is not started.
func TestProgramsOtherUser(t *testing.T) {
	setpriv, err := exec.LookPath("setpriv")
	if err != nil || os.Getuid() != 0 {
		t.Skip("needs root and setpriv")
	}
	src := model(t, 1, 1<<20)
	for _, mask := range []int{0o022, 0o027, 0o077} {
		old := unix.Umask(mask)
		defer unix.Umask(old)
		parent, err := os.MkdirTemp("/var/tmp", "mooncake-cli-")
		require.NoError(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(parent) })
		require.NoError(t, os.Chmod(parent, 0o755))
		dir := filepath.Join(parent, "store")
		require.Equal(t, 0, run(t, dir, "mooncake_weight_import", with(revision("m", "1"), "--source", src)...).code)
		const read, uri = "id -u; cat $0/* | wc -c", "mooncake-weight://m/1"
		to := []string{setpriv, "--reuid=65534", "--regid=65534", "--clear-groups"}
		for _, args := range [][]string{
			append(append([]string{"load", "--"}, to...), "sh", "-c", read, uri),
			{"load", "--", "sh", "-c", "exec " + strings.Join(to, " ") + " sh -c '" + read + "' $0", uri},
			{"load", "--user", "65534", "--", "sh", "-c", "true; " + strings.Join(to, " ") + " sh -c '" + read + "' $0", uri},
		} {
			r := run(t, dir, "mooncake_weight", args...)
			require.Equal(t, 0, r.code, "%q: %+v", args, r)
			require.True(t, strings.HasPrefix(r.out, "65534\n1048"), r.out)
			require.Contains(t, r.err, "handed out to user 65534")
			require.Contains(t, r.err, filepath.Join(dir, "loads", "m--1"))
		}
		require.NoError(t, os.Chmod(parent, 0o700))
		r := run(t, dir, "mooncake_weight", append(append([]string{"load", "--"}, to...), "echo", "started", uri)...)
		require.Equal(t, 1, r.code, "%+v", r)
		require.NotContains(t, r.out, "started")
		require.Contains(t, r.err, "setfacl -m u:65534:x "+parent)
	}
}

func TestEngineUser(t *testing.T) {
	for command, want := range map[string]string{
		"vllm serve x": "", "sudo -u vllm vllm serve": "vllm", "sudo -E -uvllm x": "vllm", "sudo --user=a b": "a", "/usr/bin/sudo --user a b": "a",
		"sudo vllm": "root", "sudo -n env vllm -u x": "root", "setpriv --reuid=5 --clear-groups x": "5", "setpriv --regid 6 --reuid 5 x": "5",
		"setpriv --no-new-privs x": "", "gosu a:b x": "a:b", "su-exec 7 x": "7", "su - a -c x": "a", "su": "", "runuser -u a -- x": "a",
		"runuser -l a": "a", "env A=1 sudo -u b x": "b", "nice sudo -u b x": "b", "echo sudo -u b": "", "vllm --note sudo -u b": "",
	} {
		require.Equal(t, want, engineUser(strings.Fields(command)), command)
	}
	require.Equal(t, "b", engineUser([]string{"bash", "-c", "cd /; exec sudo -u b vllm"}))
	require.Equal(t, "b", engineUser([]string{"env", "A=1", "sh", "-ec", "A=2 sudo -u b vllm"}))
	require.Empty(t, engineUser([]string{"sh", "-c", "echo sudo -u b"}))
	for text, want := range map[string]bool{"root": true, "0": true, "5:6": true, "root:x": true, "": false, "/bin/sh": false, "no such user": false} {
		require.Equal(t, want, knownUser(text), text)
	}
}

// TestProgramsHold prints the directory and keeps it until a signal; meanwhile a second process is told who has it.
func TestProgramsHold(t *testing.T) {
	dir, src := t.TempDir(), model(t, 1, 1<<20)
	ref := revision("m", "1")
	require.Equal(t, 0, run(t, dir, "mooncake_weight_import", with(ref, "--source", src)...).code)
	c := exec.Command(filepath.Join(bin, "mooncake_weight"), append([]string{"load", "--dir", dir, "--json"}, ref...)...)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	var v struct{ Dir string }
	require.NoError(t, json.NewDecoder(out).Decode(&v))
	require.FileExists(t, filepath.Join(v.Dir, "config.json"))
	for _, command := range []string{"list", "usage"} {
		r := run(t, dir, "mooncake_weight", command)
		require.Equal(t, 1, r.code)
		require.Contains(t, r.err, strconv.Itoa(c.Process.Pid))
	}
	r := run(t, dir, "mooncake_weight", "list", "--json")
	require.Equal(t, -1105.0, parse(t, r)["code"], "%s", r.out)
	require.NoError(t, c.Process.Signal(os.Interrupt))
	require.NoError(t, c.Wait())
	require.NoDirExists(t, v.Dir)
}

// TestProgramsInterrupt interrupts an import, which leaves it resumable.
func TestProgramsInterrupt(t *testing.T) {
	src := model(t, 24, 8<<20)
	for wait := 150 * time.Millisecond; ; wait = wait * 2 / 3 {
		dir := t.TempDir()
		args := with([]string{"import", "--dir", dir, "--source", src}, revision("m", "1")...)
		c := exec.Command(filepath.Join(bin, "mooncake_weight"), args...)
		var errOut bytes.Buffer
		c.Stderr = &errOut
		require.NoError(t, c.Start())
		time.Sleep(wait)
		require.NoError(t, c.Process.Signal(os.Interrupt))
		_ = c.Wait()
		if c.ProcessState.ExitCode() == 0 && wait > time.Millisecond {
			continue // too late
		}
		require.Equal(t, 1, c.ProcessState.ExitCode(), "%s", errOut.String())
		r := run(t, dir, "mooncake_weight", "list", "--json")
		var list []weight.Summary
		require.NoError(t, json.Unmarshal([]byte(r.out), &list))
		if len(list) > 0 {
			require.Equal(t, weight.Importing, list[0].State)
		}
		r = run(t, dir, "mooncake_weight", append(args, "--json")...)
		require.Equal(t, 0, r.code, "%+v", r)
		if len(list) > 0 && list[0].Stored > 0 {
			require.Greater(t, parse(t, r)["result"].(map[string]any)["files_resumed"], 0.0)
		}
		require.Equal(t, 0, run(t, dir, "mooncake_weight", with([]string{"check", "--deep"}, revision("m", "1")...)...).code)
		return
	}
}

// TestProgramsBar runs an import on a terminal.
func TestProgramsBar(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	defer master.Close()
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	c := exec.Command(filepath.Join(bin, "mooncake_weight"), with([]string{"import", "--dir", t.TempDir(), "--source", model(t, 4, 4<<20)}, revision("m", "1")...)...)
	c.Stderr = tty
	var out bytes.Buffer
	c.Stdout = &out
	require.NoError(t, c.Start())
	require.NoError(t, tty.Close())
	var seen bytes.Buffer
	buf := make([]byte, 4096)
	for {
		n, err := master.Read(buf)
		seen.Write(buf[:n])
		if err != nil {
			break
		}
	}
	require.NoError(t, c.Wait())
	for _, want := range []string{"[", "%", "of 16.8 MB", "/s", "left", "\r"} {
		require.Contains(t, seen.String(), want)
	}
	require.Contains(t, out.String(), "is READY")
}

func TestFindURIs(t *testing.T) {
	r := weight.Ref{ModelID: "a b", Revision: "1"}
	for in, want := range map[string]string{
		"mooncake-weight://a%20b/1": "/d", "mooncake-weight://a b/1": "/d", "x=mooncake-weight://a b/1": "x=/d",
		"(mooncake-weight://a%20b/1)": "(/d)", `"mooncake-weight://a%20b/1",`: `"/d",`, "mooncake-weight://": "mooncake-weight://",
		"mooncake-weight://a%20b/1/config.json": "mooncake-weight://a%20b/1/config.json", "mooncake-weight://a%20b/12": "mooncake-weight://a%20b/12",
		"mooncake-weight://a%20b/1;": "/d;", "mooncake-weight://a%20b/1.": "mooncake-weight://a%20b/1.",
	} {
		require.Equal(t, []string{want}, substitute([]string{in}, r, "/d"), in)
	}
}

func TestSizes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1.0 KB", 999_999: "1000.0 KB", 1 << 30: "1.1 GB", 1<<63 - 1: "9223.4 PB"} {
		require.Equal(t, want, size(n))
	}
}
