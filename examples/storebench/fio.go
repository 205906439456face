package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"

	"github.com/pkg/errors"
)

// haveFio says whether fio can be asked; without it the same pattern is done by hand.
func haveFio() bool {
	_, err := exec.LookPath("fio")
	return err == nil
}

// fio writes or reads a file once in blocks of 4 MiB past the page cache, and returns GB/s.
func fio(ctx context.Context, file string, bytes, syncEvery int, write bool) (float64, error) {
	mode := "read"
	if write {
		mode = "write"
	}
	args := []string{"--name=storebench", "--filename=" + file, "--rw=" + mode, "--bs=4m", fmt.Sprintf("--size=%d", bytes),
		"--direct=1", "--ioengine=psync", "--fallocate=keep", "--output-format=json"}
	if write {
		args = append(args, fmt.Sprintf("--fdatasync=%d", syncEvery))
	}
	out, err := exec.CommandContext(ctx, "fio", args...).Output()
	if err != nil {
		return 0, errors.WithMessage(err, "fio")
	}
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
