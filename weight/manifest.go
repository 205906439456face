package weight

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"io"
	"slices"
	"strings"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/artifact/source"
)

// FormatVersion is the newest version of the manifest that this package writes and reads. Version 2 added the files that were
// left out; a manifest without any is written as version 1, which older programs read too.
const FormatVersion = 2

// baseVersion is that of a manifest that names no file that was left out, and of records and receipts.
const baseVersion = 1

// MaxFiles and maxManifestBytes bound a manifest.
const (
	MaxFiles         = 100_000
	maxManifestBytes = 256 << 20
)

// Manifest describes a READY revision. It never changes: the same import of the same bytes makes the same manifest,
// byte for byte.
type Manifest struct {
	Version  int    `json:"format_version"`
	ModelID  string `json:"model_id"`
	Revision string `json:"revision"`
	Source   string `json:"source"` // URI or path that the files came from
	Status   State  `json:"status"` // always READY
	Size     int64  `json:"total_size"`
	Files    []File `json:"files"` // by name

	// Skipped are the files of the source that the import left out, by name, with the reasons. A manifest of version 1 has
	// none: nothing was left out, or an older program made it.
	Skipped []Skipped `json:"skipped,omitempty"`
}

// File is a file of a revision.
type File struct {
	Name   string `json:"name"`          // relative path with slashes, as in the source
	Key    string `json:"key,omitempty"` // of the object in the store; none for an empty file
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // lower-case hex
}

// Ref is the revision that the manifest describes.
func (m *Manifest) Ref() Ref { return Ref{m.ModelID, m.Revision} }

// File finds a file by name.
func (m *Manifest) File(name string) (File, bool) {
	i, ok := slices.BinarySearchFunc(m.Files, name, func(f File, name string) int { return strings.Compare(f.Name, name) })
	if !ok {
		return File{}, false
	}
	return m.Files[i], true
}

// Encode is the manifest as it is stored.
func (m *Manifest) Encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(m); err != nil {
		return nil, errors.WithMessage(err, "encode manifest")
	}
	return b.Bytes(), nil
}

// ParseManifest reads and checks a stored manifest.
func ParseManifest(p []byte) (*Manifest, error) {
	m := new(Manifest)
	if err := strictJSON(p, m); err != nil {
		return nil, errors.WithMessage(err, "manifest")
	}
	if err := m.validate(); err != nil {
		return nil, errors.WithMessagef(ErrUnreadable, "manifest: %v", err)
	}
	return m, nil
}

func (m *Manifest) validate() error {
	ref := m.Ref()
	if err := ref.Validate(); err != nil {
		return err
	}
	if m.Version < 1 || m.Status != Ready || len(m.Files) > MaxFiles {
		return errors.Errorf("version %d, status %q, %d files", m.Version, m.Status, len(m.Files))
	}
	if len(m.Skipped) > 0 && m.Version < FormatVersion || len(m.Skipped) > source.MaxFiles {
		return errors.Errorf("version %d with %d files left out", m.Version, len(m.Skipped))
	}
	var total int64
	for i, f := range m.Files {
		if err := f.validate(ref); err != nil {
			return err
		}
		if i > 0 && m.Files[i-1].Name >= f.Name {
			return errors.Errorf("files %.64q and %.64q are not in order", m.Files[i-1].Name, f.Name)
		}
		if total += f.Size; total < 0 {
			return errors.Errorf("sizes overflow at %.64q", f.Name)
		}
	}
	if total != m.Size {
		return errors.Errorf("files have %d bytes, total_size says %d", total, m.Size)
	}
	return nil
}

func (f *File) validate(ref Ref) error {
	if err := checkFileName(f.Name); err != nil {
		return err
	}
	want := ref.FileKey(f.Name)
	if f.Size == 0 {
		want = ""
	}
	if f.Size < 0 || f.Key != want {
		return errors.Errorf("file %.64q: size %d, key %.64q", f.Name, f.Size, f.Key)
	}
	if b, err := hex.DecodeString(f.SHA256); err != nil || len(b) != 32 || strings.ToLower(f.SHA256) != f.SHA256 {
		return errors.Errorf("file %.64q: sha256 %.80q", f.Name, f.SHA256)
	}
	return nil
}

// strictJSON refuses unknown fields, what follows the value, more than a manifest may have, and what a newer version
// wrote, whose fields may mean something else.
func strictJSON(p []byte, v any) error {
	if len(p) > maxManifestBytes {
		return errors.WithMessagef(ErrUnreadable, "%d bytes, limit %d", len(p), maxManifestBytes)
	}
	var version struct {
		V int `json:"format_version"`
	}
	if json.Unmarshal(p, &version) == nil && version.V > FormatVersion {
		return errors.WithMessagef(ErrNewer, "format %d, newest known %d", version.V, FormatVersion)
	}
	d := json.NewDecoder(bytes.NewReader(p))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return errors.WithMessage(ErrUnreadable, err.Error())
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.WithMessage(ErrUnreadable, "something follows the value")
	}
	return nil
}
