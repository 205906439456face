package weight

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/artifact/source/sourcetest"
	"github.com/kvcache-ai/mooncake-go/store"
)

// tree is the files of a layout, by name.
type tree map[string]string

func (t tree) put(m *sourcetest.Mem) {
	for name, content := range t {
		m.Put(name, []byte(content))
	}
}

// with adds files to a copy of the tree.
func (t tree) with(more tree) tree {
	out := tree{}
	for _, m := range []tree{t, more} {
		for name, content := range m {
			out[name] = content
		}
	}
	return out
}

// without takes files away from a copy of the tree.
func (t tree) without(names ...string) tree {
	out := t.with(nil)
	for _, n := range names {
		delete(out, n)
	}
	return out
}

// st is a safetensors file with one tensor, seed its name.
func st(name string, n int) string { return string(shard(map[string]int{name: n}, uint64(len(name)))) }

func indexOf(shards ...string) string {
	weightMap := map[string]string{}
	for i, s := range shards {
		weightMap[fmt.Sprintf("t%d", i)] = s
	}
	p, _ := json.Marshal(map[string]any{"metadata": map[string]int{"total_size": 1}, "weight_map": weightMap})
	return string(p)
}

// zipped is what torch.save begins with, of n bytes.
func zipped(n int) string {
	return "PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00archive/data.pkl" + strings.Repeat("z", n)
}

func gguf(n int) string { return "GGUF\x03\x00\x00\x00" + strings.Repeat("\x00", n) }

// The layouts that real repositories have.
var (
	single  = tree{"config.json": "{}", "tokenizer.json": "{}", "model.safetensors": st("t", 4000)}
	sharded = tree{"config.json": "{}", "tokenizer.model": "spm", "generation_config.json": "{}", "README.md": "x", "LICENSE": "y",
		mainIndex: indexOf(shard1, shard2), shard1: st("t0", 4000), shard2: st("t1", 4000)}
	torchSharded = tree{"config.json": "{}", "pytorch_model.bin.index.json": indexOf("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"),
		"pytorch_model-00001-of-00002.bin": zipped(4000), "pytorch_model-00002-of-00002.bin": zipped(4000)}
	embedding = single.with(tree{
		"modules.json": `[{"idx":0,"name":"0","path":"","type":"sentence_transformers.models.Transformer"},
			{"idx":1,"name":"1","path":"1_Pooling","type":"sentence_transformers.models.Pooling"},
			{"idx":2,"name":"2","path":"2_Dense","type":"sentence_transformers.models.Dense"},
			{"idx":3,"name":"3","path":"3_Normalize","type":"sentence_transformers.models.Normalize"}]`,
		"1_Pooling/config.json": `{"pooling_mode_mean_tokens":true}`, "2_Dense/config.json": "{}", "2_Dense/model.safetensors": st("linear", 100),
		"sentence_bert_config.json": "{}", "config_sentence_transformers.json": "{}"})
	pipeline = tree{
		"model_index.json": `{"_class_name":"P","_diffusers_version":"0.1","scheduler":["diffusers","DDIMScheduler"],"unet":["diffusers","UNet2DConditionModel"],
			"text_encoder":["transformers","CLIPTextModel"],"tokenizer":["transformers","CLIPTokenizer"],"safety_checker":[null,null],
			"feature_extractor":["transformers","CLIPImageProcessor"],"requires_safety_checker":false}`,
		"scheduler/scheduler_config.json": "{}", "tokenizer/vocab.json": "{}", "tokenizer/merges.txt": "a b",
		"feature_extractor/preprocessor_config.json": "{}", "text_encoder/config.json": "{}", "text_encoder/model.safetensors": st("t", 50),
		"unet/config.json": "{}",
		"unet/diffusion_pytorch_model.safetensors.index.json": indexOf("diffusion_pytorch_model-00001-of-00002.safetensors",
			"diffusion_pytorch_model-00002-of-00002.safetensors"),
		"unet/diffusion_pytorch_model-00001-of-00002.safetensors": st("t0", 50), "unet/diffusion_pytorch_model-00002-of-00002.safetensors": st("t1", 50)}
	adapter = tree{"adapter_config.json": "{}", "adapter_model.safetensors": st("lora", 100)}
)

// layout is a directory and what an import makes of it: out are the files that are left out, refused is in the error, and
// everything else goes in.
type layout struct {
	files            tree
	include, exclude []string
	out              map[string]string
	refused          []string
}

const (
	state, vcs, cache, other = "training state", "version control", "a cache", "another format: "
)

var goodLayouts = map[string]layout{
	"one file":                      {files: single},
	"shards with an index":          {files: sharded},
	"shards without an index":       {files: sharded.without(mainIndex)},
	"torch shards with an index":    {files: torchSharded},
	"embedding model":               {files: embedding},
	"embedding, torch dense":        {files: embedding.without("2_Dense/model.safetensors").with(tree{"2_Dense/pytorch_model.bin": zipped(10)})},
	"embedding, both denses":        {files: embedding.with(tree{"2_Dense/pytorch_model.bin": zipped(10)}), out: map[string]string{"2_Dense/pytorch_model.bin": other + "2_Dense/model.safetensors"}},
	"diffusers pipeline":            {files: pipeline},
	"adapter alone":                 {files: adapter},
	"GGUF alone":                    {files: tree{"m-q4.gguf": gguf(10)}},
	"GGUF split":                    {files: tree{"m-00001-of-00002.gguf": gguf(10), "m-00002-of-00002.gguf": gguf(10)}},
	"several quantizations":         {files: tree{"m-Q4_K_M.gguf": gguf(10), "m-Q8_0.gguf": gguf(20), "mmproj.gguf": gguf(5), "config.json": "{}"}},
	"GGUF named .bin":               {files: tree{"ggml-model.bin": gguf(10)}},
	"code of the model":             {files: single.with(tree{"modeling_x.py": "x", "configuration_x.py": "y", "x/y.py": "z"})},
	"small .pt beside shards":       {files: sharded.with(tree{"projector.pt": zipped(20), "extra/head.pt": zipped(20)})},
	"small model.pt beside shards":  {files: sharded.with(tree{"model.pt": zipped(20)})},
	"root .bin, adapter below":      {files: tree{"config.json": "{}", "pytorch_model.bin": zipped(10), "adapter/adapter_config.json": "{}", "adapter/adapter_model.safetensors": st("l", 9)}},
	"stray safetensors":             {files: sharded.with(tree{"stray.safetensors": st("x", 4)})},
	"variant of another precision":  {files: single.with(tree{"model.fp16.safetensors": st("t", 2000)})},
	"hidden and odd files":          {files: single.with(tree{".hidden": "x", "no-suffix": "y", "images/a.png": "z", "data.npy": "\x93NUMPY"})},
	"params of a consolidated only": {files: tree{"params.json": "{}", "tekken.json": "{}", "consolidated.safetensors": st("t", 100)}},
	"consolidated shards only":      {files: tree{"params.json": "{}", "consolidated.00.pth": zipped(9), "consolidated.01.pth": zipped(9), "tokenizer.model": "x"}},
	"numbered from 0":               {files: tree{"w-00000-of-00002.safetensors": st("a", 9), "w-00001-of-00002.safetensors": st("b", 9)}},
	"numbers of other lengths":      {files: tree{"model-00001-of-000002.safetensors": st("a", 9), "model-00002-of-000002.safetensors": st("b", 9)}},
	"ONNX alone":                    {files: tree{"config.json": "{}", "onnx/model.onnx": "x", "onnx/model.onnx_data": "y"}},
	"onnx file of its own":          {files: single.with(tree{"silero_vad.onnx": "x"})},
	"scaler of the model":           {files: single.with(tree{"scaler.pt": zipped(5)})},
	"variant index": {files: tree{"unet/diffusion_pytorch_model.safetensors.fp16.index.json": indexOf("diffusion_pytorch_model.fp16-00001-of-00001.safetensors"),
		"unet/diffusion_pytorch_model.fp16-00001-of-00001.safetensors": st("t0", 9)}},

	"torch beside safetensors": {files: sharded.with(torchSharded), out: map[string]string{"pytorch_model.bin.index.json": other,
		"pytorch_model-00001-of-00002.bin": other + shard1, "pytorch_model-00002-of-00002.bin": other}},
	"half of the torch files beside safetensors": {files: sharded.with(torchSharded.without("pytorch_model-00002-of-00002.bin")),
		out: map[string]string{"pytorch_model.bin.index.json": other, "pytorch_model-00001-of-00002.bin": other}},
	"all frameworks": {files: single.with(tree{"pytorch_model.bin": zipped(3000), "tf_model.h5": "\x89HDF\r\n\x1a\n", "flax_model.msgpack": "x", "rust_model.ot": "y"}),
		out: map[string]string{"pytorch_model.bin": other, "tf_model.h5": other, "flax_model.msgpack": other, "rust_model.ot": other}},
	"torch and TensorFlow": {files: tree{"config.json": "{}", "pytorch_model.bin": zipped(9), "tf_model.h5": "h", "flax_model.msgpack": "x"},
		out: map[string]string{"tf_model.h5": other + "pytorch_model.bin", "flax_model.msgpack": other + "pytorch_model.bin"}},
	"exports below": {files: single.with(tree{"onnx/model.onnx": "x", "onnx/model_q4.onnx": "q", "onnx/config.json": "{}", "openvino/openvino_model.bin": "x",
		"openvino/openvino_model.xml": "y", "coreml/m.mlpackage/Data/weights/weight.bin": "z", "metal/model.bin": "m"}),
		out: map[string]string{"onnx/model.onnx": other, "onnx/model_q4.onnx": other, "openvino/openvino_model.bin": other, "openvino/openvino_model.xml": other,
			"coreml/m.mlpackage/Data/weights/weight.bin": other, "metal/model.bin": other}},
	"Llama with its original": {files: sharded.with(tree{"original/consolidated.00.pth": zipped(9), "original/params.json": "{}", "original/tokenizer.model": "x"}),
		out: map[string]string{"original/consolidated.00.pth": other}},
	"Mistral, both forms": {files: sharded.with(tree{"consolidated.safetensors": st("t", 100), "params.json": "{}"}),
		out: map[string]string{"consolidated.safetensors": other}},
	"original in shards": {files: sharded.with(tree{"original/model.safetensors.index.json": indexOf("model-1.safetensors"), "original/model-1.safetensors": st("t0", 9)}),
		out: map[string]string{"original/model.safetensors.index.json": other, "original/model-1.safetensors": other}},
	"GGUF beside safetensors": {files: single.with(tree{"m-q4.gguf": gguf(10)}), out: map[string]string{"m-q4.gguf": other}},
	"checkpoint twins": {files: tree{"v1-5.ckpt": zipped(4000), "v1-5.safetensors": st("t", 4000), "other.ckpt": zipped(10)},
		out: map[string]string{"v1-5.ckpt": other + "v1-5.safetensors"}},
	"pipeline with torch twins": {files: pipeline.with(tree{"text_encoder/pytorch_model.bin": zipped(9), "unet/diffusion_pytorch_model.bin": zipped(9)}),
		out: map[string]string{"text_encoder/pytorch_model.bin": other, "unet/diffusion_pytorch_model.bin": other}},
	".pth beside training state": {files: tree{"model.pth": zipped(100), "training_args.bin": zipped(5), "config.json": "{}"},
		out: map[string]string{"training_args.bin": state}},
	"trainer's output": {files: single.with(tree{"optimizer.pt": zipped(9000), "scheduler.pt": zipped(9), "rng_state_0.pth": zipped(9), "trainer_state.json": "{}",
		"scaler.pt": zipped(5), "global_step10/mp_rank_00_model_states.pt": zipped(99), "latest": "global_step10", "zero_to_fp32.py": "x",
		"checkpoint-5/model.safetensors": st("t", 9), "checkpoint-5/trainer_state.json": "{}", "runs/1/events.out.tfevents.1.x": "e"}),
		out: map[string]string{"optimizer.pt": state, "scheduler.pt": state, "rng_state_0.pth": state, "trainer_state.json": state, "scaler.pt": state, "global_step10/": state,
			"latest": state, "zero_to_fp32.py": state, "checkpoint-5/": "a checkpoint of a training", "runs/1/events.out.tfevents.1.x": state}},
	"a clone": {files: single.with(tree{".git/config": "x", ".git/objects/ab/c": "y", ".gitattributes": "z", ".cache/huggingface/download/x.metadata": "m",
		"__pycache__/m.cpython-311.pyc": "p", "sub/.ipynb_checkpoints/x.json": "{"}),
		out: map[string]string{".git/": vcs, ".gitattributes": vcs, ".cache/": cache, "__pycache__/": cache, "sub/.ipynb_checkpoints/": cache}},

	"include beats the rules": {files: single.with(tree{"onnx/model.onnx": "x", "training_args.bin": "y", ".git/a": "z"}), include: []string{"onnx/", "training_args.bin"},
		out: map[string]string{".git/": vcs}},
	"exclude beats include": {files: single.with(tree{"a.txt": "x", "b.txt": "y"}), include: []string{"*.txt"}, exclude: []string{"a.*"},
		out: map[string]string{"a.txt": `excluded by "a.*"`}},
	"exclude a whole form": {files: sharded.with(tree{"other.safetensors": st("x", 5)}), exclude: []string{"model-*", mainIndex},
		out: map[string]string{shard1: "excluded", shard2: "excluded", mainIndex: "excluded"}},
	"exclude a folder": {files: single.with(tree{"docs/a/b.md": "x", "docs/c.md": "y"}), exclude: []string{"docs/"},
		out: map[string]string{"docs/a/b.md": "excluded", "docs/c.md": "excluded"}},
	"JSON as Python reads it": {files: single.with(tree{"config.json": "\ufeff{\"a\": NaN, \"b\": [-Infinity, Infinity], \"a\": \"\\ud800\"}", "data.json": "{not JSON",
		"empty.json": ""})},
}

var badLayouts = map[string]layout{
	"half of the shards":             {files: tree{"config.json": "{}", shard1: st("t0", 9)}, refused: []string{shard2}},
	"a shard of the index":           {files: sharded.without(shard2), refused: []string{mainIndex, shard2}},
	"a shard in another case":        {files: sharded.without(shard2).with(tree{"Model-00002-of-00002.safetensors": st("t1", 9)}), refused: []string{shard2}},
	"third part of a GGUF split":     {files: tree{"m-00001-of-00003.gguf": gguf(1), "m-00002-of-00003.gguf": gguf(1)}, refused: []string{"m-00003-of-00003.gguf"}},
	"second of three consolidated":   {files: tree{"consolidated.00.pth": zipped(1), "consolidated.02.pth": zipped(1)}, refused: []string{"consolidated.01.pth"}},
	"shard of a component":           {files: pipeline.without("unet/diffusion_pytorch_model-00002-of-00002.safetensors"), refused: []string{"unet/diffusion_pytorch_model-00002-of-00002.safetensors"}},
	"component":                      {files: pipeline.without("text_encoder/config.json", "text_encoder/model.safetensors"), refused: []string{"model_index.json", "text_encoder"}},
	"weights of a component":         {files: pipeline.without("text_encoder/model.safetensors"), refused: []string{"text_encoder", "CLIPTextModel"}},
	"scheduler":                      {files: pipeline.without("scheduler/scheduler_config.json"), refused: []string{"scheduler"}},
	"pooling":                        {files: embedding.without("1_Pooling/config.json"), refused: []string{"modules.json", "1_Pooling/config.json"}},
	"weights of a dense module":      {files: embedding.without("2_Dense/model.safetensors"), refused: []string{"2_Dense/model.safetensors"}},
	"module elsewhere":               {files: embedding.with(tree{"modules.json": `[{"path":"../x","type":"Pooling"}]`}), refused: []string{"../x"}},
	"weights of an adapter":          {files: single.with(tree{"lora/adapter_config.json": "{}"}), refused: []string{"lora/adapter_model.safetensors"}},
	"torch shard in a folder":        {files: tree{"x/pytorch_model-00001-of-00002.bin": zipped(1)}, refused: []string{"x/pytorch_model-00002-of-00002.bin"}},
	"stale index of a sub-folder":    {files: single.with(tree{"vae/model.safetensors.index.json": indexOf("gone.safetensors")}), refused: []string{"vae/gone.safetensors"}},
	"zip named .safetensors":         {files: tree{"model.safetensors": zipped(100)}, refused: []string{"model.safetensors", "zip archive"}},
	"GGUF named .safetensors":        {files: tree{"model.safetensors": gguf(100)}, refused: []string{"GGUF"}},
	"HTML instead of weights":        {files: tree{"model.safetensors": "<!DOCTYPE html><html>"}, refused: []string{"HTML"}},
	"empty config":                   {files: single.with(tree{"config.json": ""}), refused: []string{"config.json", "empty"}},
	"cut config":                     {files: single.with(tree{"config.json": `{"a": [1, 2`}), refused: []string{"config.json", "cut short"}},
	"cut tokenizer":                  {files: single.with(tree{"tokenizer.json": `{"model": {"vocab": {"a`}), refused: []string{"tokenizer.json", "cut short"}},
	"empty index":                    {files: sharded.with(tree{mainIndex: ""}), refused: []string{mainIndex}},
	"cut index":                      {files: sharded.with(tree{mainIndex: indexOf(shard1, shard2)[:60]}), refused: []string{mainIndex}},
	"damaged config of a module":     {files: embedding.with(tree{"1_Pooling/config.json": "{]"}), refused: []string{"1_Pooling/config.json"}},
	"cut modules.json":               {files: embedding.with(tree{"modules.json": "["}), refused: []string{"modules.json"}},
	"include that matches nothing":   {files: single, include: []string{"*.safetensors", "onix/*"}, refused: []string{`"onix/*"`}},
	"exclude that matches nothing":   {files: single, exclude: []string{"*.bin"}, refused: []string{`"*.bin"`}},
	"exclude of a needed shard":      {files: sharded, exclude: []string{"*-00002-*"}, refused: []string{shard2, `excluded by "*-00002-*"`}},
	"exclude of a numbered shard":    {files: sharded.without(mainIndex), exclude: []string{"*-00002-*"}, refused: []string{shard2, `excluded by "*-00002-*"`}},
	"exclude of a component's shard": {files: pipeline, exclude: []string{"unet/*-00001-*"}, refused: []string{"unet/diffusion_pytorch_model-00001-of-00002.safetensors", "excluded"}},
	"exclude of the pooling":         {files: embedding, exclude: []string{"1_Pooling/"}, refused: []string{"1_Pooling/config.json", "excluded"}},
	"training state alone":           {files: tree{"config.json": "{}", "optimizer.pt": zipped(9), "training_args.bin": zipped(9)}, refused: []string{"no weights"}},
}

// TestLayouts imports directories as real repositories have them, checks which files go in, and reads them back.
func TestLayouts(t *testing.T) {
	ctx := context.Background()
	for name, c := range goodLayouts {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, store.Options{MemoryBytes: 16 * mib})
			c.files.put(e.mem)
			q := e.request(ref)
			q.Include, q.Exclude = c.include, c.exclude
			r, err := e.m.Import(ctx, q)
			require.NoError(t, err)
			out := map[string]string{}
			for _, s := range r.Skipped {
				out[s.Name] = s.Reason
			}
			require.Equal(t, sortedOf(c.out), sortedOf(out))
			for name, why := range c.out {
				require.Contains(t, out[name], why, name)
			}
			require.Equal(t, r.Skipped, r.Manifest.Skipped)
			taken := names(r.Manifest.Files)
			for name := range c.files {
				_, skipped := out[name]
				for folder := range out {
					skipped = skipped || strings.HasSuffix(folder, "/") && strings.HasPrefix(name, folder)
				}
				require.Equal(t, !skipped, contains(taken, name), name)
			}
			rep, err := e.m.Check(ctx, ref, Deep)
			require.NoError(t, err)
			require.NoError(t, rep.Err())
			_, err = e.m.Tensors(ctx, ref)
			require.NoError(t, err)
			again, err := e.m.Import(ctx, q)
			require.NoError(t, err)
			require.True(t, again.Existed)
		})
	}
}

func sortedOf(m map[string]string) []string {
	n := map[string]int{}
	for k := range m {
		n[k] = 0
	}
	return sortedKeys(n)
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

// TestIncompleteLayouts refuses what is no whole model, by the name of what is wrong, before anything is stored.
func TestIncompleteLayouts(t *testing.T) {
	for name, c := range badLayouts {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, store.Options{MemoryBytes: 16 * mib})
			c.files.put(e.mem)
			q := e.request(ref)
			q.Include, q.Exclude = c.include, c.exclude
			_, err := e.m.Import(context.Background(), q)
			want := ErrSource
			if strings.Contains(name, "matches nothing") {
				want = ErrInvalid
			}
			require.ErrorIs(t, err, want)
			for _, part := range c.refused {
				require.Contains(t, strings.ReplaceAll(err.Error(), `\"`, `"`), part)
			}
			e.nothing()
		})
	}
}

// TestDeepCheckOfOldRevision checks revisions that an import with other rules has stored: the deep check names what is missing
// or does not parse.
func TestDeepCheckOfOldRevision(t *testing.T) {
	ctx := context.Background()
	for name, c := range map[string]struct {
		files    tree
		by, says string
	}{
		"pooling":        {embedding.without("1_Pooling/config.json"), "modules.json", "1_Pooling/config.json"},
		"component":      {pipeline.without("unet/diffusion_pytorch_model-00001-of-00002.safetensors"), "unet/diffusion_pytorch_model.safetensors.index.json", "-00001-of-00002"},
		"numbered shard": {tree{shard1: st("t0", 9)}, shard1, shard2},
		"empty config":   {single.with(tree{"config.json": ""}), "config.json", "empty"},
		"cut tokenizer":  {single.with(tree{"tokenizer.json": "{"}), "tokenizer.json", "cut short"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, store.Options{MemoryBytes: 16 * mib})
			e.storeAsIs(c.files)
			rep, err := e.m.Check(ctx, ref, Quick)
			require.NoError(t, err)
			require.NoError(t, rep.Err(), "every byte is there")
			rep, err = e.m.Check(ctx, ref, Deep)
			require.NoError(t, err)
			require.False(t, rep.OK)
			require.ErrorIs(t, rep.Err(), ErrDamaged)
			for _, f := range rep.Files {
				require.Equal(t, f.Name == c.by, f.Problem != "", "%s: %s", f.Name, f.Problem)
			}
			require.ErrorContains(t, rep.Err(), c.says)
		})
	}
}

// storeAsIs stores a revision without any check, with a manifest of version 1.
func (e *env) storeAsIs(files tree) {
	e.t.Helper()
	man := &Manifest{Version: 1, ModelID: ref.ModelID, Revision: ref.Revision, Source: "mem://m", Status: Ready}
	var all []string
	for name := range files {
		all = append(all, name)
	}
	n := map[string]int{}
	for _, name := range all {
		n[name] = 0
	}
	for _, name := range sortedKeys(n) {
		f := File{Name: name, Size: int64(len(files[name])), SHA256: sha([]byte(files[name]))}
		if f.Size > 0 {
			f.Key = ref.FileKey(name)
			require.NoError(e.t, e.s.Put(context.Background(), f.Key, []byte(files[name]), &store.PutOptions{Type: store.Weight, Group: ref.group()}))
		}
		man.Size += f.Size
		man.Files = append(man.Files, f)
	}
	p, err := man.Encode()
	require.NoError(e.t, err)
	require.NoError(e.t, e.s.Put(context.Background(), ref.ManifestKey(), p, e.m.metadata()))
}

// TestTensorsOfLayouts finds tensors in safetensors files of any name, of several folders, and aliases.
func TestTensorsOfLayouts(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, store.Options{MemoryBytes: 16 * mib})
	header := `{"__metadata__":{"format":"pt","lm_head.weight":"embed.weight"},"embed.weight":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}`
	tied := string(binary.LittleEndian.AppendUint64(nil, uint64(len(header)))) + header + "tied"
	pipeline.with(tree{"pytorch_model.bin": tied, "vae/config.json": "{}", "vae/diffusion_pytorch_model.safetensors": st("t", 30),
		"x/model.safetensors": st("v", 11), "x/model.fp16.safetensors": st("v", 5)}).put(e.mem)
	e.doImport(ref)
	all, err := e.m.Tensors(ctx, ref)
	require.NoError(t, err)
	var alias Tensor
	for _, a := range all {
		if a.Name == "lm_head.weight" {
			alias = a
		}
	}
	require.Equal(t, "embed.weight", alias.AliasOf)
	require.Equal(t, "pytorch_model.bin", alias.File)
	buf := make([]byte, 100)
	for _, name := range []string{"embed.weight", "lm_head.weight", "pytorch_model.bin:lm_head.weight"} {
		n, err := e.m.ReadTensor(ctx, ref, name, buf)
		require.NoError(t, err, name)
		require.Equal(t, "tied", string(buf[:n]), name)
		v, err := e.m.ViewTensor(ctx, ref, name)
		require.NoError(t, err, name)
		require.Equal(t, "tied", string(v.Bytes()), name)
		require.NoError(t, v.Close())
	}
	_, err = e.m.Tensor(ctx, ref, "t")
	require.ErrorIs(t, err, ErrInvalid, "it is in two components")
	require.ErrorContains(t, err, "text_encoder/model.safetensors")
	require.ErrorContains(t, err, "FILE:NAME")
	one, err := e.m.Tensor(ctx, ref, "vae/diffusion_pytorch_model.safetensors:t")
	require.NoError(t, err)
	require.Equal(t, int64(30), one.Len)
	one, err = e.m.Tensor(ctx, ref, "v")
	require.NoError(t, err)
	require.Equal(t, "x/model.safetensors", one.File, "not the variant")
	_, err = e.m.Tensor(ctx, ref, "none")
	require.ErrorIs(t, err, ErrNoTensor)

	// A stale file beside an index has tensors of the same names: the index decides.
	e.mem.Put("unet/a-old.safetensors", shard(map[string]int{"t0": 3}, 1))
	two := Ref{ref.ModelID, "2"}
	e.doImport(two)
	one, err = e.m.Tensor(ctx, two, "t0")
	require.NoError(t, err)
	require.Equal(t, "unet/diffusion_pytorch_model-00001-of-00002.safetensors", one.File)
}
