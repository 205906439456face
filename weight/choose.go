package weight

import (
	"path"
	"slices"
	"strings"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/artifact/source"
)

// Skipped is a file of the source that an import leaves out, and why.
type Skipped struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// choice is which files of a source an import takes.
type choice struct {
	files   []source.Info // by name
	skipped []Skipped
	shards  map[string]bool // of files, those in safetensors format
	index   string          // name of the safetensors index, "" without one
}

const safetensorsSuffix, indexSuffix = ".safetensors", ".safetensors.index.json"

// otherFormats are suffixes of weights in formats that an import takes only when there is no safetensors file, the
// first that is there; "" stands between them.
var otherFormats = [][]string{{".bin", ".bin.index.json"}, {".pt", ".pth"}, {".gguf"}, {".h5"}, {".msgpack"}, {".onnx"}, {".ckpt"}}

// choose applies the rules for which files of a model directory an engine needs: the weight shards that the index
// names, or all of the one format when there is no index, and the small files beside them. include and exclude are
// path.Match patterns, against the whole name or its last element; exclude beats include beats the rules.
func choose(l *source.Listing, q *ImportRequest, shards map[string]bool, index string) (*choice, error) {
	c := &choice{shards: make(map[string]bool), index: index}
	format := formatOf(l.Files)
	for _, f := range l.Files {
		take, why := wanted(f.Name, format, shards, index, q.Code)
		switch {
		case matches(q.Exclude, f.Name):
			take, why = false, "excluded"
		case matches(q.Include, f.Name):
			take = true
		}
		if !take {
			c.skipped = append(c.skipped, Skipped{f.Name, why})
			continue
		}
		if err := checkFileName(f.Name); err != nil {
			return nil, errors.WithMessage(ErrSource, err.Error())
		}
		c.files = append(c.files, f)
		if strings.HasSuffix(f.Name, safetensorsSuffix) {
			c.shards[f.Name] = true
		}
	}
	for _, r := range l.Refused {
		if matches(q.Exclude, r.Name) {
			continue
		}
		if take, _ := wanted(r.Name, format, shards, index, q.Code); take || matches(q.Include, r.Name) {
			return nil, errors.WithMessagef(r.Err, "file %.128q", r.Name)
		}
		c.skipped = append(c.skipped, Skipped{r.Name, r.Err.Error()})
	}
	slices.SortFunc(c.skipped, func(a, b Skipped) int { return strings.Compare(a.Name, b.Name) })
	if len(c.files) > MaxFiles {
		return nil, errors.WithMessagef(ErrSource, "%d files, limit %d", len(c.files), MaxFiles)
	}
	return c, c.checkTree()
}

// checkTree refuses a file that others lie below, which object stores can have and directories can't.
func (c *choice) checkTree() error {
	directories := make(map[string]bool)
	for _, f := range c.files {
		for d := path.Dir(f.Name); d != "." && !directories[d]; d = path.Dir(d) {
			directories[d] = true
		}
	}
	for _, f := range c.files {
		if directories[f.Name] {
			return errors.WithMessagef(ErrSource, "%.128q is a file and a directory", f.Name)
		}
	}
	return nil
}

// size adds up the files' sizes.
func (c *choice) size() (total int64, err error) {
	for _, f := range c.files {
		if f.Size < 0 {
			return 0, errors.WithMessagef(ErrSource, "file %.128q: the source does not know its size", f.Name)
		}
		if total += f.Size; total < 0 {
			return 0, errors.WithMessage(ErrSource, "the sizes of the files overflow")
		}
	}
	return total, nil
}

func matches(patterns []string, name string) bool {
	for _, p := range patterns {
		whole, _ := path.Match(p, name)
		last, _ := path.Match(p, path.Base(name))
		if whole || last {
			return true
		}
	}
	return false
}

func checkPatterns(patterns []string) error {
	for _, p := range patterns {
		if _, err := path.Match(p, ""); err != nil {
			return errors.WithMessagef(ErrInvalid, "pattern %.64q: %v", p, err)
		}
	}
	return nil
}

// formatOf is the suffixes of the format that the weights come in: safetensors if there is one such file.
func formatOf(files []source.Info) []string {
	has := func(suffixes []string) bool {
		return slices.ContainsFunc(files, func(f source.Info) bool { return hasSuffix(f.Name, suffixes) })
	}
	if has([]string{safetensorsSuffix}) {
		return []string{safetensorsSuffix}
	}
	for _, suffixes := range otherFormats {
		if has(suffixes) {
			return suffixes
		}
	}
	return nil
}

func hasSuffix(name string, suffixes []string) bool {
	return slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(name, s) })
}

// wanted is the rule for one file.
func wanted(name string, format []string, shards map[string]bool, index string, code bool) (take bool, why string) {
	isWeight := strings.HasSuffix(name, safetensorsSuffix)
	for _, suffixes := range otherFormats {
		isWeight = isWeight || hasSuffix(name, suffixes)
	}
	switch {
	case shards[name] || name == index && index != "":
		return true, ""
	case strings.HasSuffix(name, indexSuffix) && index != "":
		return false, "another index"
	case isWeight && !hasSuffix(name, format):
		return false, "weights in another format"
	case isWeight && len(shards) > 0:
		return false, "weights that the index does not name"
	case isWeight && strings.Contains(name, "/"):
		return false, "weights in a subdirectory that no index names"
	case isWeight:
		return true, ""
	case strings.HasSuffix(name, ".py"):
		return code, "code, which only an import with code takes"
	case strings.Contains(name, "/"):
		return false, "in a subdirectory"
	case isEngineFile(name):
		return true, ""
	}
	return false, "not needed by an engine"
}

// isEngineFile knows configuration, tokenizers and templates by their usual names.
func isEngineFile(name string) bool {
	lower := strings.ToLower(name)
	switch path.Ext(lower) {
	case ".json", ".model", ".jinja", ".tiktoken", ".vocab", ".spm":
		return true
	case ".txt":
		return strings.Contains(lower, "vocab") || strings.Contains(lower, "merges") || strings.Contains(lower, "token")
	}
	return false
}
