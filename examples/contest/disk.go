package contest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// DiskBytes is the size of the blocks that Disk writes and reads.
const DiskBytes = 4 << 20

// Disk is a pattern of I/O past the page cache, in blocks of DiskBytes.
type Disk struct {
	Files     []string // side by side, each whole
	Bytes     int64    // of each file
	Write     bool     // files should be new then
	SyncEvery int      // blocks after which a write is synced; 0 syncs at the end only
	Refill    bool     // give every block other bytes
}

// DiskTool is what Disk.Run measures with: fio where there is one.
func DiskTool() string {
	if _, err := exec.LookPath("fio"); err == nil {
		return "fio"
	}
	return "O_DIRECT loop"
}

// Run does the pattern once and returns GB/s.
func (d *Disk) Run(ctx context.Context) (float64, error) {
	if DiskTool() == "fio" {
		return d.fio(ctx)
	}
	return GBps(d.Bytes*int64(len(d.Files)), len(d.Files), func(t int) error { return d.direct(d.Files[t]) })
}

func (d *Disk) fio(ctx context.Context) (float64, error) {
	mode := "read"
	args := []string{"--bs=4m", fmt.Sprintf("--size=%d", d.Bytes), "--direct=1", "--ioengine=psync",
		"--fallocate=keep", "--group_reporting", "--output-format=json"}
	if d.Write {
		mode = "write"
		args = append(args, "--end_fsync=1")
		if d.SyncEvery > 0 {
			args = append(args, fmt.Sprintf("--fdatasync=%d", d.SyncEvery))
		}
	}
	if d.Refill {
		args = append(args, "--refill_buffers=1")
	}
	args = append(args, "--rw="+mode)
	for i, file := range d.Files {
		args = append(args, fmt.Sprintf("--name=job%d", i), "--filename="+strings.ReplaceAll(file, ":", `\:`))
	}
	out, err := exec.CommandContext(ctx, "fio", args...).Output()
	if err != nil {
		return 0, errors.WithMessage(err, "fio")
	}
	return fioFigure(out, mode)
}

func fioFigure(out []byte, mode string) (float64, error) {
	var report struct {
		Jobs []map[string]json.RawMessage `json:"jobs"`
	}
	var part struct {
		Bytes   float64 `json:"io_bytes"`
		Runtime float64 `json:"runtime"` // ms
	}
	if err := json.Unmarshal(out, &report); err != nil || len(report.Jobs) != 1 {
		return 0, errors.Errorf("fio printed no report: %v", err)
	}
	if err := json.Unmarshal(report.Jobs[0][mode], &part); err != nil || part.Runtime == 0 {
		return 0, errors.Errorf("fio printed no figure: %v", err)
	}
	return part.Bytes / 1e6 / part.Runtime, nil
}

// direct does what fio does, for machines without it.
func (d *Disk) direct(file string) error {
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.Open(file, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	}
	if err != nil {
		return errors.WithMessage(err, file)
	}
	f := os.NewFile(uintptr(fd), file)
	defer func() { _ = f.Close() }()
	buf, err := unix.Mmap(-1, 0, DiskBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(buf) }()
	FillRandom(buf)
	for i := range d.Bytes / DiskBytes {
		if err := d.block(f, buf, i); err != nil {
			return err
		}
	}
	if d.Write {
		return f.Sync()
	}
	return nil
}

func (d *Disk) block(f *os.File, buf []byte, i int64) error {
	if !d.Write {
		_, err := f.ReadAt(buf, i*DiskBytes)
		return err
	}
	for at := 0; d.Refill && at < len(buf); at += 512 { // enough that no two sectors are alike
		buf[at], buf[at+1] = byte(i), byte(i>>8)
	}
	_, err := f.WriteAt(buf, i*DiskBytes)
	if err == nil && d.SyncEvery > 0 && (i+1)%int64(d.SyncEvery) == 0 {
		err = unix.Fdatasync(int(f.Fd()))
	}
	return err
}
