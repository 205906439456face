package weight

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store"
)

// Depth says how far Check looks.
type Depth int

const (
	Quick Depth = iota // every file is present, has its size, and has a replica that is not quarantined
	Deep               // and every byte is what the manifest says
)

// Report is what Check found.
type Report struct {
	Ref   Ref          `json:"ref"`
	State State        `json:"state"`
	OK    bool         `json:"ok"`
	Size  int64        `json:"total_size"`
	Files []FileReport `json:"files"`
}

// FileReport is what Check found of one file. Problem is empty when nothing is wrong.
type FileReport struct {
	Name    string `json:"name"`
	Size    int64  `json:"size"`
	Problem string `json:"problem,omitempty"`
}

// Err is nil for a revision that is whole; else it is ErrDamaged and names the first bad file.
func (r *Report) Err() error {
	for _, f := range r.Files {
		if f.Problem != "" {
			return errors.WithMessagef(ErrDamaged, "%v: file %q: %s", r.Ref, f.Name, f.Problem)
		}
	}
	return nil
}

// Check looks at each file of a READY revision. What is wrong with files is in the report, not in the error.
func (m *Manager) Check(ctx context.Context, ref Ref, depth Depth) (*Report, error) {
	man, err := m.Manifest(ctx, ref)
	if err != nil {
		return nil, errors.WithMessage(err, "check")
	}
	var buf []byte
	if depth == Deep {
		buf = make([]byte, checkBytes)
	}
	r := &Report{Ref: ref, State: man.Status, OK: true, Size: man.Size}
	for _, f := range man.Files {
		problem := m.problem(f)
		if problem == "" && depth == Deep {
			if problem, err = m.deepProblem(ctx, f, buf); err != nil {
				return nil, errors.WithMessagef(err, "check %v: file %q", ref, f.Name)
			}
		}
		r.OK = r.OK && problem == ""
		r.Files = append(r.Files, FileReport{f.Name, f.Size, problem})
	}
	return r, nil
}

// problem is what a look at the metadata finds.
func (m *Manager) problem(f File) string {
	if f.Size == 0 {
		return ""
	}
	info, err := m.s.Stat(f.Key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return "missing"
	case err != nil:
		return err.Error()
	case info.Size != f.Size:
		return fmt.Sprintf("%d bytes, the manifest says %d", info.Size, f.Size)
	case !info.InMemory && !info.OnSSD:
		return "quarantined: no replica has the right bytes"
	}
	return ""
}

// checkBytes is how much of a file is read at a time.
const checkBytes = 4 << 20

// deepProblem reads a file whole, verified, and compares its SHA-256.
func (m *Manager) deepProblem(ctx context.Context, f File, buf []byte) (string, error) {
	h := sha256.New()
	read := []store.RangeRead{{Key: f.Key}}
	for off := int64(0); off < f.Size; off += int64(len(buf)) {
		p := buf[:min(int64(len(buf)), f.Size-off)]
		read[0].Fragments = []store.Fragment{{Off: off, Dst: p}}
		if err := m.s.GetRanges(ctx, read, &store.ReadOptions{Verify: store.VerifyAlways}); err != nil {
			return "", err
		}
		if err := read[0].Err; err != nil {
			if ctx.Err() != nil {
				return "", ctx.Err()
			}
			return err.Error(), nil
		}
		_, _ = h.Write(p)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != f.SHA256 {
		return fmt.Sprintf("SHA-256 %s, the manifest says %s", got, f.SHA256), nil
	}
	return "", nil
}
