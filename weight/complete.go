package weight

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/artifact/safetensors"
)

// parts is a set of files that is to be a whole model: those that an import takes, or those of a revision.
type parts struct {
	names   map[string]bool
	folders map[string]bool // every folder that a file lies in, at any depth
	formats map[string]format
	read    func(name string, limit int64) ([]byte, error)
	why     func(name string) string // why a file is not in names: " (excluded by ...)"; "" when it is nowhere
}

func newParts(names []string) *parts {
	p := &parts{names: make(map[string]bool, len(names)), folders: make(map[string]bool), formats: make(map[string]format),
		why: func(string) string { return "" }}
	for _, n := range names {
		p.names[n] = true
		for d := path.Dir(n); !p.folders[d]; d = path.Dir(d) {
			p.folders[d] = true
		}
	}
	return p
}

// sorted is the names in order, so that the same model gives the same error.
func (p *parts) sorted() []string {
	names := make([]string, 0, len(p.names))
	for n := range p.names {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// missing is the error for a file or folder that another file names.
func (p *parts) missing(by, name string) error {
	return partError{by, errors.WithMessagef(sourceError{safetensors.ErrMissingShard}, "%.128q%s", name, p.why(name))}
}

// partError is what is wrong with what a file says of others.
type partError struct {
	name  string // of the file that says it
	cause error
}

func (e partError) Error() string { return fmt.Sprintf("file %q: %v", e.name, e.cause) }
func (e partError) Unwrap() error { return e.cause }

// badPart is a partError, nil for a nil error.
func badPart(name string, err error) error {
	if err == nil {
		return nil
	}
	return partError{name, err}
}

// maxConfigBytes bounds the configuration files that are read whole.
const maxConfigBytes = 16 << 20

// check looks for what the files say of each other: numbered shards, the modules of a sentence-transformers model, the
// components of a diffusers pipeline, the weights of an adapter. checkIndexes is the rest.
func (p *parts) check() error {
	names := p.sorted()
	if err := p.checkNumbers(names); err != nil {
		return err
	}
	for _, n := range names {
		var err error
		switch path.Base(n) {
		case "modules.json":
			err = p.checkModules(n)
		case "model_index.json":
			err = p.checkPipeline(n)
		case "adapter_config.json":
			if !p.hasWeights(path.Dir(n)) {
				err = p.missing(n, path.Join(path.Dir(n), "adapter_model.safetensors"))
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkIndexes makes sure that every shard that an index names is there and, where its header is known, holds the tensors
// that the index says.
func (p *parts) checkIndexes(headers map[string]*safetensors.Header) error {
	for _, n := range p.sorted() {
		if indexFormat(path.Base(n)) == noWeights {
			continue
		}
		b, err := p.read(n, safetensors.MaxIndexBytes)
		if err != nil {
			return badPart(n, err)
		}
		x, err := safetensors.ParseIndex(b)
		if err != nil {
			return badPart(n, notAModel(err))
		}
		if err := p.checkIndex(n, x, headers); err != nil {
			return err
		}
	}
	return nil
}

func (p *parts) checkIndex(name string, x *safetensors.Index, headers map[string]*safetensors.Header) error {
	known := make(map[string]*safetensors.Header)
	for _, shard := range x.Shards() {
		full := path.Join(path.Dir(name), shard)
		if !p.names[full] {
			return p.missing(name, full)
		}
		if h := headers[full]; h != nil {
			known[shard] = h
		}
	}
	for tensor, shard := range x.WeightMap {
		if known[shard] == nil {
			delete(x.WeightMap, tensor)
		}
	}
	return badPart(name, notAModel(x.Validate(known)))
}

var (
	numbered = regexp.MustCompile(`^(.*-)(\d+)(-of-)(\d+)((?:\.[^./]+)?\.[^./]+)$`)
	counted  = regexp.MustCompile(`^(consolidated\.)(\d\d)(\.pth?)$`)
)

// series is the shards of one numbering.
type series struct {
	example string
	have    map[int]bool
	name    func(n int) string
	total   int // -1: up to the highest that is there
}

// checkNumbers makes sure that of every numbering each shard is there: -00001-of-00004 to -00004-of-00004, or from 0, and
// consolidated.00.pth, consolidated.01.pth, ...
func (p *parts) checkNumbers(names []string) error {
	all := make(map[string]*series)
	var order []*series
	for _, n := range names {
		if p.formats[n] == noWeights {
			continue
		}
		key, number, s := seriesOf(n)
		if s == nil {
			continue
		}
		if all[key] == nil {
			all[key] = s
			order = append(order, s)
		}
		all[key].have[number] = true
	}
	for _, s := range order {
		if n, ok := s.missing(); ok {
			return p.missing(s.example, s.name(n))
		}
	}
	return nil
}

func seriesOf(name string) (key string, number int, s *series) {
	dir, base := path.Split(name)
	s = &series{example: name, have: make(map[int]bool), total: -1}
	if m := numbered.FindStringSubmatch(base); m != nil {
		number, err := strconv.Atoi(m[2])
		total, err2 := strconv.Atoi(m[4])
		if err != nil || err2 != nil || number > total {
			return "", 0, nil
		}
		s.total = total
		s.name = func(n int) string { return fmt.Sprintf("%s%s%0*d%s%s%s", dir, m[1], len(m[2]), n, m[3], m[4], m[5]) }
		return dir + m[1] + "/" + strconv.Itoa(len(m[2])) + "/" + m[4] + m[5], number, s
	}
	if m := counted.FindStringSubmatch(base); m != nil {
		number, _ := strconv.Atoi(m[2])
		s.name = func(n int) string { return fmt.Sprintf("%s%s%02d%s", dir, m[1], n, m[3]) }
		return dir + m[1] + "/" + m[3], number, s
	}
	return "", 0, nil
}

// missing is the first number that is not there.
func (s *series) missing() (int, bool) {
	from, to := 1, s.total
	switch {
	case s.total < 0:
		from, to = 0, 0
		for n := range s.have {
			to = max(to, n)
		}
	case s.have[0]:
		from, to = 0, s.total-1
	}
	for n := from; n <= to; n++ {
		if !s.have[n] {
			return n, true
		}
	}
	return 0, false
}

func (p *parts) hasWeights(dir string) bool {
	for n, f := range p.formats {
		if f != noWeights && path.Dir(n) == dir {
			return true
		}
	}
	return false
}

// readJSON reads a configuration file into v.
func (p *parts) readJSON(name string, v any) error {
	b, err := p.read(name, maxConfigBytes)
	if err != nil {
		return badPart(name, err)
	}
	if err := json.Unmarshal(bytes.TrimPrefix(b, []byte("\ufeff")), v); err != nil {
		return badPart(name, errors.WithMessage(ErrSource, err.Error()))
	}
	return nil
}

// needs is what a module of sentence-transformers reads from its folder. Normalize, for instance, reads nothing, and its folder
// is not even there.
var needs = map[string]struct{ config, weights bool }{
	"Pooling": {config: true}, "WeightedLayerPooling": {config: true}, "Dropout": {config: true}, "SpladePooling": {config: true},
	"Dense": {true, true}, "LayerNorm": {true, true}, "WordWeights": {config: true}, "Transformer": {config: true, weights: true},
	"Normalize": {},
}

// checkModules checks the modules of a sentence-transformers model: https://sbert.net, "Structure of Sentence Transformer
// models". Without the configuration of its pooling an engine takes another one, and the vectors are wrong.
func (p *parts) checkModules(name string) error {
	var modules []struct{ Path, Type string }
	if err := p.readJSON(name, &modules); err != nil {
		return err
	}
	for _, m := range modules {
		kind := m.Type[strings.LastIndex(m.Type, ".")+1:]
		need, known := needs[kind]
		dir := path.Join(path.Dir(name), m.Path)
		switch {
		case m.Path == "" || known && need == needs["Normalize"]:
			continue
		case !p.folders[dir]:
			if known {
				return p.missing(name, path.Join(dir, "config.json"))
			}
			return p.missing(name, dir+"/")
		case need.config && !p.names[path.Join(dir, "config.json")]:
			return p.missing(name, path.Join(dir, "config.json"))
		case need.weights && !p.hasWeights(dir):
			return p.missing(name, path.Join(dir, "model.safetensors"))
		}
	}
	return nil
}

// light are the suffixes of diffusers and transformers classes that have no weights.
var light = []string{"Scheduler", "Tokenizer", "TokenizerFast", "Processor", "FeatureExtractor"}

// checkPipeline checks the components of a diffusers pipeline: each that model_index.json names has a folder, and weights in
// it if it is a model. A component of [null, null] is absent on purpose.
func (p *parts) checkPipeline(name string) error {
	var components map[string]json.RawMessage
	if err := p.readJSON(name, &components); err != nil {
		return err
	}
	names := make([]string, 0, len(components))
	for c := range components {
		names = append(names, c)
	}
	slices.Sort(names)
	for _, c := range names {
		var class []*string
		if strings.HasPrefix(c, "_") || json.Unmarshal(components[c], &class) != nil || len(class) != 2 || class[1] == nil {
			continue
		}
		dir := path.Join(path.Dir(name), c)
		isModel := class[0] != nil && (*class[0] == "diffusers" || *class[0] == "transformers") &&
			!slices.ContainsFunc(light, func(s string) bool { return strings.HasSuffix(*class[1], s) })
		switch {
		case !p.folders[dir]:
			return p.missing(name, dir+"/")
		case isModel && !p.hasWeights(dir):
			return p.missing(name, dir+"/ (the weights of "+*class[1]+")")
		}
	}
	return nil
}

// engineJSON knows files that engines parse as JSON, by their usual names.
func engineJSON(name string) bool {
	base := path.Base(name)
	if !strings.HasSuffix(base, ".json") {
		return false
	}
	switch base {
	case "modules.json", "model_index.json", "params.json", "tekken.json", "chat_template.json", "added_tokens.json", "vocab.json":
		return true
	}
	return strings.Contains(base, "config") || strings.HasPrefix(base, "tokenizer") || strings.HasSuffix(base, "_map.json") ||
		indexName.MatchString(base)
}
