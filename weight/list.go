package weight

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// Summary describes a revision in a list.
type Summary struct {
	Ref     Ref       `json:"ref"`
	State   State     `json:"state"`
	Source  string    `json:"source"`
	Files   int       `json:"files"`
	Size    int64     `json:"total_size"`
	Stored  int64     `json:"stored"`            // of an unfinished import, what is stored completely
	Started time.Time `json:"started,omitzero"`  // of an unfinished import
	Running bool      `json:"running,omitempty"` // the import runs in this process
	InUse   []Holder  `json:"in_use,omitempty"`  // who has it loaded
	Problem string    `json:"problem,omitempty"` // with what is stored about it; there is no State then
}

// List describes the revisions of a model, or of all models for "", ordered by model and revision. A revision that is
// being deleted is not there any more.
func (m *Manager) List(ctx context.Context, modelID string) ([]Summary, error) {
	all, err := m.scan(ctx)
	if err != nil {
		return nil, err
	}
	var out []Summary
	for ref, f := range all {
		if modelID != "" && ref.ModelID != modelID || f.record != nil && f.record.Deleting {
			continue
		}
		s := Summary{Ref: ref}
		switch {
		case f.manifest != nil:
			s.State, s.Source, s.Files, s.Size, s.Stored = Ready, f.manifest.Source, len(f.manifest.Files), f.manifest.Size, f.manifest.Size
			s.InUse = m.holders(ref)
		case f.record != nil:
			s.State, s.Source, s.Files, s.Size = Importing, f.record.Source, f.record.Files, f.record.Size
			s.Stored, s.Started, s.Running = f.stored, f.record.Started, m.importing(ref)
		case f.problem != nil:
			s.Problem = f.problem.Error()
		default:
			continue
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Summary) int {
		return cmp.Or(cmp.Compare(a.Ref.ModelID, b.Ref.ModelID), cmp.Compare(a.Ref.Revision, b.Ref.Revision))
	})
	return out, nil
}

func (m *Manager) importing(ref Ref) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.mu.imports[ref]
	return i != nil && !i.deleting
}

// Usage is what a READY revision takes. Shared is the part of Bytes that another revision, or another file of the same
// one, has too: it would not be freed by a Delete of this one alone. Equal files of a few KiB don't share.
type Usage struct {
	Ref    Ref   `json:"ref"`
	Bytes  int64 `json:"bytes"`
	Shared int64 `json:"shared"`
}

// Usage adds up the READY revisions, ordered by model and revision, and the bytes that all of them take together.
func (m *Manager) Usage(ctx context.Context) (revisions []Usage, total int64, err error) {
	all, err := m.scan(ctx)
	if err != nil {
		return nil, 0, err
	}
	sharing := make(map[content]*sharers)
	for _, f := range all {
		for _, file := range f.files() {
			m.countSharer(sharing, file)
		}
	}
	for c, n := range sharing {
		total += c.size * max(n.owners, 1) // the owner's key may be gone
	}
	for ref, f := range all {
		if f.manifest == nil {
			continue
		}
		u := Usage{Ref: ref, Bytes: f.manifest.Size}
		for _, file := range f.files() {
			if n := sharing[contentOf(file)]; n.links > 0 && n.links+n.owners > 1 {
				u.Shared += file.Size
			}
		}
		revisions = append(revisions, u)
	}
	slices.SortFunc(revisions, func(a, b Usage) int {
		return cmp.Or(cmp.Compare(a.Ref.ModelID, b.Ref.ModelID), cmp.Compare(a.Ref.Revision, b.Ref.Revision))
	})
	return revisions, total, nil
}

// sharers counts the objects with the same bytes: those that have them, and links to one of these.
type sharers struct{ owners, links int64 }

func (m *Manager) countSharer(all map[content]*sharers, f File) {
	n := all[contentOf(f)]
	if n == nil {
		n = new(sharers)
		all[contentOf(f)] = n
	}
	if info, err := m.s.Stat(f.Key); err == nil && info.Link {
		n.links++
	} else {
		n.owners++
	}
}

// files are the files of a READY revision that have bytes.
func (f *found) files() (out []File) {
	if f.manifest == nil {
		return nil
	}
	for _, file := range f.manifest.Files {
		if file.Size > 0 {
			out = append(out, file)
		}
	}
	return out
}
