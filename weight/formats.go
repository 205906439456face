package weight

import (
	"context"
	"path"
	"regexp"
	"strings"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/artifact/safetensors"
	"github.com/kvcache-ai/mooncake-go/artifact/source"
)

// format is one in which weights come. Of the same weights in one folder the lowest is taken.
type format int

const (
	noWeights format = iota
	safetensorsFormat
	torchFormat
	ggufFormat
	kerasFormat
	flaxFormat
	rustFormat
	onnxFormat
	openvinoFormat
	tfliteFormat
	coremlFormat
)

const safetensorsSuffix = ".safetensors"

// suffixes tell the format of a file that its first bytes do not tell.
var suffixes = []struct {
	suffix string
	format format
}{
	{safetensorsSuffix, safetensorsFormat}, {".bin", torchFormat}, {".pt", torchFormat}, {".pth", torchFormat}, {".ckpt", torchFormat},
	{".gguf", ggufFormat}, {".h5", kerasFormat}, {".msgpack", flaxFormat}, {".ot", rustFormat}, {".onnx", onnxFormat},
	{".onnx_data", onnxFormat}, {".onnx.data", onnxFormat}, {".tflite", tfliteFormat}, {".mlmodel", coremlFormat},
}

// openvinoName is a file of OpenVINO's: its .bin is no torch file.
var openvinoName = regexp.MustCompile(`^openvino_.*\.(bin|xml)$`)

// formatOfName is what a file's name says.
func formatOfName(base string) format {
	if openvinoName.MatchString(base) {
		return openvinoFormat
	}
	for _, s := range suffixes {
		if strings.HasSuffix(base, s.suffix) {
			return s.format
		}
	}
	return noWeights
}

func isWeightName(base string) bool { return formatOfName(base) != noWeights }

// weightsFrom is the size from which a file whose name says nothing is looked into.
const weightsFrom = 1 << 20

// textSuffixes are of files whose content is not looked into, whatever their size.
var textSuffixes = set(".json", ".jsonl", ".txt", ".md", ".py", ".jinja", ".model", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".mp4",
	".wav", ".pdf", ".csv", ".parquet", ".yaml", ".yml")

// sniffed reports whether the format depends on the content. A file called .safetensors is one, or is refused.
func sniffed(name string, size int64) bool {
	base := path.Base(name)
	if f := formatOfName(base); f != noWeights {
		return f == torchFormat || f == ggufFormat
	}
	return size >= weightsFrom && !textSuffixes[strings.ToLower(path.Ext(base))]
}

// formatOf tells a file's format by its first bytes, then by its name.
func formatOf(base string, first []byte) format {
	named := formatOfName(base)
	switch safetensors.Sniff(first) {
	case safetensors.KindSafetensors:
		return safetensorsFormat
	case safetensors.KindGGUF:
		return ggufFormat
	case safetensors.KindHDF5:
		if named != noWeights {
			return kerasFormat
		}
	}
	return named
}

// sniff reads the beginning of a file of the source.
func sniff(ctx context.Context, src source.Source, info source.Info) (format, error) {
	base := path.Base(info.Name)
	if !sniffed(info.Name, info.Size) || info.Size < 1 {
		return formatOfName(base), nil
	}
	head := info
	head.Size = min(info.Size, safetensors.SniffBytes)
	p, err := readSmall(ctx, src, info, head.Size)
	if err != nil {
		return noWeights, errors.WithMessagef(err, "file %q", info.Name)
	}
	return formatOf(base, p), nil
}

var (
	// indexName is an index of shards: model.safetensors.index.json, and with a variant model.safetensors.index.fp16.json or
	// model.safetensors.fp16.index.json.
	indexName  = regexp.MustCompile(`^(.+?)(\.[^./]+)?\.index(\.[^./]+)?\.json$`)
	numbering  = regexp.MustCompile(`-\d+-of-\d+`)
	frameworks = regexp.MustCompile(`^(diffusion_)?(?:pytorch|tf|flax|rust|openvino)_`)
)

// stem is what the files of the same weights have in common, whatever their format and number: model for
// pytorch_model-00001-of-00002.bin and model.safetensors. named is true for a name that a framework gives.
func stem(base string) (s string, named bool) {
	if strings.HasSuffix(base, ".json") {
		base = strings.TrimSuffix(base, ".json")
		if i := strings.LastIndex(base, ".index"); i >= 0 {
			base = base[:i] + base[i+len(".index"):]
		}
		variant := path.Ext(base)
		if f := formatOfName(strings.TrimSuffix(base, variant)); f != noWeights { // model.safetensors.fp16
			base = strings.TrimSuffix(base, variant)
			for _, x := range suffixes {
				if strings.HasSuffix(base, x.suffix) {
					base = strings.TrimSuffix(base, x.suffix) + variant + x.suffix
					break
				}
			}
		}
	}
	for _, x := range suffixes {
		if strings.HasSuffix(base, x.suffix) {
			base = strings.TrimSuffix(base, x.suffix)
			break
		}
	}
	base = strings.TrimSuffix(base, ".xml")
	base = numbering.ReplaceAllString(base, "")
	named = frameworks.MatchString(base)
	return frameworks.ReplaceAllString(base, "$1"), named
}

// indexFormat is the format of the shards that an index names, by its own name; noWeights if base is no index of weights.
func indexFormat(base string) format {
	m := indexName.FindStringSubmatch(base)
	if m == nil {
		return noWeights
	}
	if f := formatOfName(m[1] + m[2]); f != noWeights {
		return f
	}
	return formatOfName(m[1])
}

// weightFile is a file with weights, or an index of some.
type weightFile struct {
	name   string
	format format
	size   int64
	index  bool
	stem   string
	named  bool // by a framework
}

func newWeightFile(name string, in format, size int64, index bool) weightFile {
	f := weightFile{name: name, format: in, size: size, index: index}
	f.stem, f.named = stem(path.Base(name))
	return f
}

// mainStem is the stem of a model's weights in Hugging Face's layout, diffusionStem that of a part of a pipeline.
const mainStem, diffusionStem = "model", "diffusion_model"

// folder is the weights in one folder.
type folder struct {
	best  map[string]weightFile // by stem, a file in the format that is taken
	bytes map[stemFormat]int64
}

type stemFormat struct {
	stem   string
	format format
}

func folders(files []weightFile) map[string]*folder {
	all := make(map[string]*folder)
	for _, f := range files {
		if f.index {
			continue
		}
		d := all[path.Dir(f.name)]
		if d == nil {
			d = &folder{best: make(map[string]weightFile), bytes: make(map[stemFormat]int64)}
			all[path.Dir(f.name)] = d
		}
		d.bytes[stemFormat{f.stem, f.format}] += f.size
		if best, ok := d.best[f.stem]; !ok || f.better(best) {
			d.best[f.stem] = f
		}
	}
	return all
}

// better prefers a lower format and, of two files with safetensors content, the one that is called so.
func (f weightFile) better(than weightFile) bool {
	if f.format != than.format {
		return f.format < than.format
	}
	return strings.HasSuffix(f.name, safetensorsSuffix) && !strings.HasSuffix(than.name, safetensorsSuffix)
}

// main is a file of the weights that engines take from a folder.
func (d *folder) main(stems ...string) (weightFile, bool) {
	for _, s := range stems {
		if f, ok := d.best[s]; ok && f.format <= torchFormat {
			return f, true
		}
	}
	return weightFile{}, false
}

// The same weights in another format, and what is taken instead. What is needed otherwise is --include.
//
//	left out                                             when there is
//	pytorch_model*.bin, diffusion_pytorch_model*.bin,    model*.safetensors, ... of the same stem in the same folder; so is
//	adapter_model.bin, tf_model.h5, flax_model.msgpack,  the one that is lower in the list of formats (pytorch_model.bin before
//	rust_model.ot, openvino_model.{xml,bin}, *.onnx      tf_model.h5). Their indexes go with them
//	NAME.ckpt, NAME.pt, ...                              NAME.safetensors in the same folder, unless it is more than four times
//	                                                     as large: a small file beside is no copy of it
//	consolidated*.safetensors, consolidated*.pth         model*.safetensors or pytorch_model*.bin in the same folder
//	*.gguf                                               the same; GGUF files alone are all taken: quantizations differ
//	original/, metal/, coreml/: all weights              model*.safetensors or pytorch_model*.bin in the folder above, or those
//	onnx/ openvino/ tflite/: that format                 of a diffusers component
//
// Variants (model.fp16.safetensors) are other weights: a loader asks for them by name.
func (d *folder) twin(f weightFile) (why string) {
	if main, ok := d.main(mainStem); ok {
		if f.format == ggufFormat || strings.HasPrefix(path.Base(f.name), "consolidated") && f.format <= torchFormat {
			return anotherFormat(main)
		}
	}
	best, ok := d.best[f.stem]
	if !ok || !best.better(f) || f.index && best.format == f.format {
		return ""
	}
	if f.index || f.named || 4*d.bytes[stemFormat{f.stem, f.format}] >= d.bytes[stemFormat{f.stem, best.format}] {
		return anotherFormat(best)
	}
	return ""
}

func anotherFormat(taken weightFile) string {
	return "weights in another format: " + taken.name + " is taken"
}

// exports are folders with the weights of the folder above in another format, and that format; noWeights stands for each.
var exports = map[string]format{"original": noWeights, "metal": noWeights, "coreml": noWeights, "onnx": onnxFormat,
	"openvino": openvinoFormat, "tflite": tfliteFormat}

// exported is the reason to leave out a file that lies below a folder of exports.
func exported(f weightFile, all map[string]*folder) (why string) {
	elements := strings.Split(path.Dir(f.name), "/")
	for i, e := range elements {
		in, ok := exports[e]
		if !ok || in != noWeights && f.format != in {
			continue
		}
		if d := all[path.Join(".", path.Join(elements[:i]...))]; d != nil {
			if main, ok := d.main(mainStem, diffusionStem); ok {
				return anotherFormat(main)
			}
		}
	}
	return ""
}
