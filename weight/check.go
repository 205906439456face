package weight

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store"
)

// Depth says how far Check looks.
type Depth int

const (
	Quick Depth = iota // every file is present, has its size, and has a replica that is not quarantined
	Deep               // and every byte is what the manifest says, JSON that engines read parses, and no part of the model is missing
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
	if depth == Deep && r.OK && len(r.Files) > 0 {
		return r, m.checkParts(ctx, man, r)
	}
	return r, nil
}

// checkParts looks for parts of the model that its files name and that are not there, which an older import let pass. What is
// wrong is in the report, with the file that names what is missing.
func (m *Manager) checkParts(ctx context.Context, man *Manifest, r *Report) error {
	names := make([]string, len(man.Files))
	for i, f := range man.Files {
		names[i] = f.Name
	}
	p := newParts(names)
	p.read = func(name string, limit int64) ([]byte, error) {
		f, _ := man.File(name)
		if f.Size > limit {
			return nil, errors.WithMessagef(ErrSource, "%d bytes, limit %d", f.Size, limit)
		}
		return m.readWhole(ctx, f)
	}
	for _, f := range man.Files {
		in, err := m.formatOf(ctx, f)
		if err != nil {
			return errors.WithMessagef(err, "check %v: file %q", man.Ref(), f.Name)
		}
		p.formats[f.Name] = in
	}
	err := p.checkIndexes(nil)
	if err == nil {
		err = p.check()
	}
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, ErrSource):
		return errors.WithMessagef(err, "check %v", man.Ref())
	}
	r.OK = false
	named := 0
	var by partError
	if errors.As(err, &by) {
		named = max(0, slices.IndexFunc(r.Files, func(f FileReport) bool { return f.Name == by.name }))
	}
	r.Files[named].Problem = err.Error()
	return nil
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
	h, text := sha256.New(), new(jsonScanner)
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
		if engineJSON(f.Name) {
			_, _ = text.Write(p)
		}
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != f.SHA256 {
		return fmt.Sprintf("SHA-256 %s, the manifest says %s", got, f.SHA256), nil
	}
	if !engineJSON(f.Name) {
		return "", nil
	}
	if err := text.Close(); err != nil {
		return err.Error(), nil
	}
	return "", nil
}
