package weight

import (
	"path"
	"regexp"
	"strings"
)

// Everything in a source goes into the revision, except what is known not to be needed. This file knows, by name, what is
// no part of any model; formats.go knows the same weights in another format.
//
//	reason                       files and folders
//	version control              .git .hg .svn .bzr, .gitattributes .gitignore .gitmodules
//	a cache                      .cache .huggingface .locks .no_exist __pycache__ .ipynb_checkpoints .mypy_cache
//	                             .pytest_cache ._____temp .DS_Store .mdl .msc .mv (the last three: ModelScope), *.pyc
//	training state               optimizer.pt optimizer.bin training_args.bin trainer_state.json rng_state*.pth
//	                             random_states_*.pkl zero_pp_rank_* global_step*/ zero_to_fp32.py events.out.tfevents.*
//	training state               scheduler.pt scheduler.bin scaler.pt sampler.bin latest, beside one of the above
//	a checkpoint of a training   checkpoint-N/ with a trainer_state.json in it, below a folder that has weights
//
// scaler.pt alone may be data of the model, a normaliser for example, so it counts only beside an optimizer.
var (
	versionControl = set(".git", ".hg", ".svn", ".bzr", ".gitattributes", ".gitignore", ".gitmodules")
	caches         = set(".cache", ".huggingface", ".locks", ".no_exist", "__pycache__", ".ipynb_checkpoints", ".mypy_cache",
		".pytest_cache", "._____temp", ".DS_Store", ".mdl", ".msc", ".mv")
	trainingFiles  = set("optimizer.pt", "optimizer.bin", "training_args.bin", "trainer_state.json", "zero_to_fp32.py")
	trainingBeside = set("scheduler.pt", "scheduler.bin", "scaler.pt", "sampler.bin", "latest")

	trainingNames    = regexp.MustCompile(`^(rng_state.*\.pth|random_states_\d+\.pkl|(bf16_)?zero_pp_rank_.*|events\.out\.tfevents\..*)$`)
	trainingFolder   = regexp.MustCompile(`^global_step\d+$`)
	checkpointFolder = regexp.MustCompile(`^checkpoint-\d+$`)
)

func set(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, n := range names {
		m[n] = true
	}
	return m
}

// leaver decides which files of a listing are no part of a model.
type leaver struct {
	trained     map[string]bool // folders that hold training state
	checkpoints map[string]bool // folders of training checkpoints beside the model
}

func newLeaver(names []string) *leaver {
	l := &leaver{trained: make(map[string]bool), checkpoints: make(map[string]bool)}
	weights, states := make(map[string]bool), make(map[string]bool)
	for _, n := range names {
		dir, base := path.Dir(n), path.Base(n)
		for d, below := dir, base; ; d, below = path.Dir(d), path.Base(d) {
			if trainingFiles[below] || trainingNames.MatchString(below) || trainingFolder.MatchString(below) {
				l.trained[d] = true
			}
			if d == "." {
				break
			}
		}
		weights[dir] = weights[dir] || isWeightName(base) && !trainingFiles[base]
		states[dir] = states[dir] || base == "trainer_state.json"
	}
	for dir := range states {
		if checkpointFolder.MatchString(path.Base(dir)) && weights[path.Dir(dir)] {
			l.checkpoints[dir] = true
		}
	}
	return l
}

// why is the reason to leave a file out, "" when it goes in. at is what is left out: the file, or a folder that it lies in.
func (l *leaver) why(name string) (why, at string) {
	elements := strings.Split(name, "/")
	for i, e := range elements {
		at = strings.Join(elements[:i+1], "/")
		if i < len(elements)-1 {
			at += "/"
		}
		switch {
		case versionControl[e]:
			return "version control", at
		case caches[e] || strings.HasSuffix(e, ".pyc"):
			return "a cache", at
		case i < len(elements)-1 && trainingFolder.MatchString(e):
			return "training state", at
		case l.checkpoints[strings.TrimSuffix(at, "/")]:
			return "a checkpoint of a training", at
		}
	}
	base := path.Base(name)
	if trainingFiles[base] || trainingNames.MatchString(base) || trainingBeside[base] && l.trained[path.Dir(name)] {
		return "training state", name
	}
	return "", name
}
