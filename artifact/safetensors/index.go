package safetensors

import (
	"io/fs"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/pkg/errors"
)

// MaxIndexBytes bounds the index of a model.
const MaxIndexBytes = 100_000_000

// maxShardPath bounds a path in the index, in bytes.
const maxShardPath = 4096

// maxProblems is the number of problems that Validate names.
const maxProblems = 10

// Index is a model.safetensors.index.json, which says in which file of a model each tensor is:
//
//	{"metadata": {"total_size": 123}, "weight_map": {"a.weight": "model-00001-of-00002.safetensors", ...}}
//
// Its source is the "Sharded checkpoints" of https://huggingface.co/docs/transformers/big_models. A file that the
// index does not name is no part of the model's weights, whatever its name. A tensor that shares another's bytes (tied
// weights) is usually not listed, and need not be.
type Index struct {
	WeightMap map[string]string // tensor -> path of its shard, relative to the index, slash-separated, confined
	TotalSize int64             // bytes of all tensors by the word of the index; -1 when it is absent or no number
	Metadata  map[string]string // each value of "metadata" as its JSON text; nil when absent
}

// ParseIndex reads an index. Keys other than weight_map and metadata are ignored. Errors: ErrIndex (duplicate
// keys included), ErrShardPath, LFSPointerError.
func ParseIndex(json []byte) (*Index, error) {
	if len(json) > MaxIndexBytes {
		return nil, errors.Wrapf(ErrIndex, "%d bytes, at most %d", len(json), MaxIndexBytes)
	}
	if err := checkPointer(json); err != nil {
		return nil, err
	}
	s, err := newScanner(string(json), ErrIndex)
	if err != nil {
		return nil, err
	}
	p := indexParser{s, &Index{TotalSize: -1}}
	seen := make(map[string]bool)
	err = s.object(func(key string) error {
		if seen[key] {
			return s.errorf("duplicate key %s", quote(key))
		}
		seen[key] = true
		return p.entry(key)
	})
	if err != nil {
		return nil, err
	}
	if err := s.end(); err != nil {
		return nil, err
	}
	if p.x.WeightMap == nil {
		return nil, s.errorf("no weight_map")
	}
	return p.x, nil
}

// Shards returns the paths of the files that hold the tensors, sorted.
func (x *Index) Shards() []string {
	set := make(map[string]struct{})
	for _, shard := range x.WeightMap {
		set[shard] = struct{}{}
	}
	return slices.Sorted(maps.Keys(set))
}

// Validate compares the index with the headers of its shards, by path. Headers of other files are ignored. Tensors of a
// shard that the index does not list are allowed, unless two shards hold them. All problems up to ten are in the
// error, sorted. Errors: ErrMissingShard, ErrMissingTensor, ErrDuplicateTensor.
func (x *Index) Validate(headers map[string]*Header) error {
	var found problems
	shards := x.Shards()
	for _, shard := range shards {
		if headers[shard] == nil {
			found.add(ErrMissingShard, quote(shard))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(x.WeightMap)) {
		shard := x.WeightMap[name]
		if h := headers[shard]; h != nil {
			if _, ok := h.Resolve(name); !ok {
				found.add(ErrMissingTensor, quote(name)+" in shard "+quote(shard))
			}
		}
	}
	holder := make(map[string]string)
	for _, shard := range shards {
		if headers[shard] == nil {
			continue
		}
		for _, t := range headers[shard].Tensors {
			if other, dup := holder[t.Name]; dup {
				found.add(ErrDuplicateTensor, quote(t.Name)+" in "+quote(other)+" and "+quote(shard))
			}
			holder[t.Name] = shard
		}
	}
	return found.err()
}

// problems is a bounded list of errors.
type problems struct {
	errs []error
	more int
}

func (p *problems) add(kind error, what string) {
	if len(p.errs) == maxProblems {
		p.more++
		return
	}
	p.errs = append(p.errs, errors.WithMessage(kind, what))
}

func (p *problems) err() error {
	if len(p.errs) == 0 {
		return nil
	}
	return &problemsError{p.errs, p.more}
}

type problemsError struct {
	errs []error
	more int
}

func (e *problemsError) Unwrap() []error { return e.errs }

func (e *problemsError) Error() string {
	var lines []string
	for _, err := range e.errs {
		lines = append(lines, err.Error())
	}
	if e.more > 0 {
		lines = append(lines, strconv.Itoa(e.more)+" more")
	}
	return strings.Join(lines, "; ")
}

type indexParser struct {
	*scanner
	x *Index
}

func (p indexParser) entry(key string) error {
	switch key {
	case "weight_map":
		p.x.WeightMap = make(map[string]string)
		return p.object(p.weight)
	case "metadata":
		if p.peek() == '{' {
			p.x.Metadata = make(map[string]string)
			return p.object(p.metadata)
		}
	}
	_, err := p.skip(0)
	return err
}

// weight reads one tensor's shard.
func (p indexParser) weight(name string) error {
	if _, dup := p.x.WeightMap[name]; dup {
		return p.errorf("tensor %s: duplicate key", quote(name))
	}
	shard, err := p.str()
	if err != nil {
		return errors.Wrapf(err, "tensor %s", quote(name))
	}
	if len(shard) > maxShardPath || !fs.ValidPath(shard) || shard == "." || strings.IndexByte(shard, 0) >= 0 {
		return errors.Wrapf(ErrShardPath, "tensor %s: %s", quote(name), quote(shard))
	}
	p.x.WeightMap[name] = shard
	return nil
}

func (p indexParser) metadata(key string) error {
	if _, dup := p.x.Metadata[key]; dup {
		return p.errorf("metadata %s: duplicate key", quote(key))
	}
	value, err := p.skip(0)
	if err != nil {
		return errors.Wrapf(err, "metadata %s", quote(key))
	}
	p.x.Metadata[key] = value
	if key == "total_size" {
		p.x.TotalSize = wholeNumber(value)
	}
	return nil
}

// wholeNumber reads a number, which some writers give as 123.0 or 1.23e2.
func wholeNumber(text string) int64 {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 {
		return n
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f < 0 || f >= 1<<53 || f != math.Trunc(f) {
		return -1
	}
	return int64(f)
}
