package weight

import (
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store"
)

// Scheme is the URI scheme of a revision: mooncake-weight://<model_id>/<revision>.
const Scheme = "mooncake-weight"

// Limits of a revision's names, so that every key made of them fits into store.MaxKeyBytes.
const (
	MaxModelBytes    = 1024 // encoded
	MaxRevisionBytes = 256  // encoded
	MaxFileNameBytes = 2048 // encoded
	maxElementBytes  = 255  // of a file's name, what Linux can have in a directory
)

// Ref names a revision of a model. A model id may hold slashes; a revision may not.
type Ref struct {
	ModelID  string `json:"model_id"`
	Revision string `json:"revision"`
}

func (r Ref) String() string { return r.ModelID + "@" + r.Revision }

// URI is the revision as engines and programs are given it.
func (r Ref) URI() string {
	parts := strings.Split(r.ModelID, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return Scheme + "://" + strings.Join(parts, "/") + "/" + url.PathEscape(r.Revision)
}

// ParseURI reads mooncake-weight://<model_id>/<revision>. The last element is the revision; there is no authority; the
// parts are percent-decoded.
func ParseURI(uri string) (Ref, error) {
	rest, ok := strings.CutPrefix(uri, Scheme+"://")
	if !ok {
		return Ref{}, errors.WithMessagef(ErrInvalid, "URI %.128q: want %s://<model_id>/<revision>", uri, Scheme)
	}
	if strings.ContainsAny(rest, "?#") {
		return Ref{}, errors.WithMessagef(ErrInvalid, "URI %.128q: a query or fragment means nothing here", uri)
	}
	parts := strings.Split(rest, "/")
	if len(parts) < 2 {
		return Ref{}, errors.WithMessagef(ErrInvalid, "URI %.128q: no revision, want %s://<model_id>/<revision>", uri, Scheme)
	}
	for i, p := range parts {
		s, err := url.PathUnescape(p)
		if err != nil || s == "" {
			return Ref{}, errors.WithMessagef(ErrInvalid, "URI %.128q: element %d is empty or badly encoded", uri, i+1)
		}
		parts[i] = s
	}
	last := len(parts) - 1
	r := Ref{strings.Join(parts[:last], "/"), parts[last]}
	return r, r.Validate()
}

// Validate reports what is wrong with a revision's name.
func (r Ref) Validate() error {
	if err := checkName("model id", r.ModelID, MaxModelBytes); err != nil {
		return err
	}
	if strings.Contains(r.Revision, "/") {
		return errors.WithMessagef(ErrInvalid, "revision %.64q holds a slash", r.Revision)
	}
	for _, p := range strings.Split(r.ModelID, "/") {
		if p == "" || p == "." || p == ".." {
			return errors.WithMessagef(ErrInvalid, "model id %.64q has an empty or a relative element", r.ModelID)
		}
	}
	if r.Revision == "." || r.Revision == ".." {
		return errors.WithMessagef(ErrInvalid, "revision %q is a relative path", r.Revision)
	}
	return checkName("revision", r.Revision, MaxRevisionBytes)
}

func checkName(what, name string, limit int) error {
	switch n := len(encode(name)); {
	case name == "":
		return errors.WithMessagef(ErrInvalid, "%s is empty", what)
	case n > limit:
		return errors.WithMessagef(ErrInvalid, "%s %.32q... is %d bytes encoded, limit %d", what, name, n, limit)
	case !utf8.ValidString(name):
		return errors.WithMessagef(ErrInvalid, "%s %.64q is not UTF-8", what, name)
	case strings.ContainsFunc(name, func(c rune) bool { return c < 0x20 || c == 0x7f }):
		return errors.WithMessagef(ErrInvalid, "%s %.64q holds a control character", what, name)
	}
	return nil
}

// encode is the form of a name inside a key: ':' and '%' are percent-encoded, so that no two revisions or files meet.
func encode(name string) string { return keyEscapes.Replace(name) }

// keyEscapes is made once: making one costs some microseconds, and a manifest of many files encodes many names.
var keyEscapes = strings.NewReplacer("%", "%25", ":", "%3A")

func decode(part string) (string, error) {
	s, err := url.PathUnescape(part)
	if err != nil || encode(s) != part {
		return "", errors.WithMessagef(ErrInvalid, "key part %.64q", part)
	}
	return s, nil
}

const keyPrefix = "weight:"

// group is the name of the group that a revision's files are members of, and the prefix of all its keys.
func (r Ref) group() string { return keyPrefix + encode(r.ModelID) + ":" + encode(r.Revision) }

// FileKey is the store's key of a file of the revision.
func (r Ref) FileKey(name string) string { return r.group() + ":file:" + encode(name) }

// ManifestKey is the store's key of the revision's manifest.
func (r Ref) ManifestKey() string { return r.group() + ":manifest" }

func (r Ref) recordKey() string             { return r.group() + ":record" }
func (r Ref) receiptPrefix() string         { return r.group() + ":receipt:" }
func (r Ref) receiptKey(name string) string { return r.receiptPrefix() + encode(name) }

// parseKey splits a key into its revision and what follows: "manifest", "record", "file:..." or "receipt:...".
func parseKey(key string) (r Ref, rest string, err error) {
	parts := strings.SplitN(key, ":", 4)
	if len(parts) != 4 || parts[0]+":" != keyPrefix {
		return r, "", errors.WithMessagef(ErrInvalid, "key %.64q", key)
	}
	if r.ModelID, err = decode(parts[1]); err == nil {
		r.Revision, err = decode(parts[2])
	}
	return r, parts[3], err
}

// checkFileName confines a file's name to its directory and its key to the store's limit.
func checkFileName(name string) error {
	if err := checkName("file name", name, MaxFileNameBytes); err != nil {
		return err
	}
	for _, p := range strings.Split(name, "/") {
		if p == "" || p == "." || p == ".." {
			return errors.WithMessagef(ErrInvalid, "file name %.64q is not a plain relative path", name)
		}
		if len(p) > maxElementBytes {
			return errors.WithMessagef(ErrInvalid, "file name %.64q: an element of %d bytes, limit %d", name, len(p), maxElementBytes)
		}
	}
	return nil
}

var _ [store.MaxKeyBytes - (len(keyPrefix) + MaxModelBytes + MaxRevisionBytes + len("::receipt:") + MaxFileNameBytes)]byte
