package weight

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"
)

// A load directory is named <model id>--<revision>, with "--" for the slashes of the model id, as the hub cache names
// its folders: engines call a model after the last element of its path, in metrics, cache folders and the keys of KV
// pages, so that it must tell model and revision, and be one name for both. It has letters, digits, '.', '_' and '-'
// only: '/', ':', '@', '%' and '#' separate fields in keys of vLLM, LMCache and others.
//
// A reference that this can't spell, or not uniquely, gets "---" and a digest behind a similar name. Names without a
// digest never have three dashes in a row, so no two references share a name.

const (
	maxElement = 200 // bytes of a path element; room is left for a suffix
	digestMark = "---"
)

func loadName(ref Ref) string {
	parts := append(strings.Split(ref.ModelID, "/"), ref.Revision)
	name, plain := strings.Join(parts, "--"), true
	for _, p := range parts {
		plain = plain && plainPart(p)
	}
	if plain && len(name) <= maxElement {
		return name
	}
	sum := sha256.Sum256([]byte(ref.ModelID + "\x00" + ref.Revision))
	name = strings.Trim(strings.Map(plainRune, name), "-.")
	for strings.Contains(name, digestMark) {
		name = strings.ReplaceAll(name, digestMark, "--")
	}
	if most := maxElement - len(digestMark) - 32; len(name) > most {
		name = strings.TrimRight(name[:most], "-.")
	}
	return name + digestMark + hex.EncodeToString(sum[:16])
}

// plainPart reports whether a part of a reference stands in a name as it is. A dash at its end, or two in it, would
// leave open where the next part begins.
func plainPart(p string) bool {
	return strings.IndexFunc(p, func(c rune) bool { return plainRune(c) != c }) < 0 && p[0] != '-' && p[0] != '.' &&
		p[len(p)-1] != '-' && !strings.Contains(p, "--")
}

// plainRune is c, or '_' for one that may mean something to an engine, a shell or a file system.
func plainRune(c rune) rune {
	if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-' {
		return c
	}
	return '_'
}

// directoryPath is where a revision is loaded.
func (m *Manager) directoryPath(ref Ref) string { return filepath.Join(m.loadRoot, loadName(ref)) }

// oldPath is where earlier versions loaded a revision: <model id>/<revision>. An engine that one of them started may
// still use it.
func (m *Manager) oldPath(ref Ref) string {
	return filepath.Join(m.loadRoot, element(ref.ModelID), element(ref.Revision))
}

// element is a name as one element of such an old path.
func element(name string) string {
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; c >= 0x80 || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._+=@,", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	e := b.String()
	if len(e) <= maxElement {
		return e
	}
	sum := sha256.Sum256([]byte(name))
	return strings.ToValidUTF8(e[:maxElement-34], "") + "%~" + hex.EncodeToString(sum[:16])
}
