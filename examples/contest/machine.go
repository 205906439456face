package contest

import (
	"bufio"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// GiB is n bytes in GiB.
func GiB(n int64) float64 { return float64(n) / (1 << 30) }

// MemAvailable is what the kernel thinks can be taken without swapping.
func MemAvailable() int64 { return procKiB("/proc/meminfo", "MemAvailable:") }

// Status is a figure of a process in bytes, such as RssAnon; pid is a number or "self".
func Status(pid, field string) int64 { return procKiB("/proc/"+pid+"/status", field+":") }

// Rollup is a figure of all mappings of a process in bytes, such as Pss.
func Rollup(pid, field string) int64 { return procKiB("/proc/"+pid+"/smaps_rollup", field+":") }

func procKiB(file, prefix string) int64 {
	kib, _ := strconv.ParseInt(strings.TrimSuffix(procLine(file, prefix), " kB"), 10, 64)
	return kib << 10
}

// CPUName is what the processor calls itself.
func CPUName() string { return strings.TrimLeft(procLine("/proc/cpuinfo", "model name"), "\t: ") }

// HasSHA reports whether the processor has instructions of its own for SHA-256, which Go uses where it has.
func HasSHA() bool {
	flag, prefix := "sha_ni", "flags"
	if runtime.GOARCH == "arm64" {
		flag, prefix = "sha2", "Features"
	}
	return strings.Contains(procLine("/proc/cpuinfo", prefix)+" ", " "+flag+" ")
}

func procLine(file, prefix string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), prefix); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// LoadAverage is that of the last minute.
func LoadAverage() string {
	p, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(p), " ")
	return first
}

// CPUSeconds is the time that this process has had on processors, in and out of the kernel.
func CPUSeconds() float64 {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // fails only for a bad pointer
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// FillRandom gives every page bytes of its own.
func FillRandom(p []byte) {
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(p[:min(len(p), 1<<20)])
	for n := 1 << 20; n < len(p); n *= 2 {
		copy(p[n:], p[:n])
	}
	for i := 0; i+8 <= len(p); i += 4096 {
		p[i], p[i+1], p[i+2], p[i+3] = byte(i>>12), byte(i>>20), byte(i>>28), byte(i>>36)
	}
}

// Settle ends garbage collection that earlier work began.
func Settle() {
	runtime.GC()
	runtime.GC()
}
