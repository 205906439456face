package weight

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/artifact/safetensors"
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
	skipped []Skipped     // by name
	formats map[string]format
	headers map[string]*safetensors.Header // of files, those in safetensors format
	out     map[string]string              // why files are left out
	folders map[string]string              // of files in out, the folder that is left out as a whole
}

// choose takes every file of a listing except those that are known not to be needed. Include beats these rules, Exclude beats
// Include.
func choose(ctx context.Context, src source.Source, l *source.Listing, q *ImportRequest) (*choice, error) {
	c := &choice{formats: make(map[string]format), headers: make(map[string]*safetensors.Header),
		out: make(map[string]string), folders: make(map[string]string)}
	if err := checkMatches(l, q); err != nil {
		return nil, err
	}
	c.leaveOut(l, q)
	files, err := c.sniffAll(ctx, src, l)
	if err != nil {
		return nil, err
	}
	c.leaveTwins(files, q)
	for _, f := range l.Files {
		if err := c.take(f); err != nil {
			return nil, err
		}
	}
	for _, r := range l.Refused {
		if err := c.refused(r, q); err != nil {
			return nil, err
		}
	}
	c.listSkipped()
	if len(c.files) > MaxFiles {
		return nil, errors.WithMessagef(ErrSource, "%d files, limit %d", len(c.files), MaxFiles)
	}
	return c, c.checkTree()
}

// leaveOut notes the files that their names alone tell to leave out, and those that the request excludes.
func (c *choice) leaveOut(l *source.Listing, q *ImportRequest) {
	all := make([]string, 0, len(l.Files))
	for _, f := range l.Files {
		all = append(all, f.Name)
	}
	rules := newLeaver(all)
	for _, r := range l.Refused {
		all = append(all, r.Name)
	}
	for _, name := range all {
		if p, ok := matching(q.Exclude, name); ok {
			c.out[name] = fmt.Sprintf("excluded by %q", p)
		} else if why, at := rules.why(name); why != "" && !matches(q.Include, name) {
			c.out[name] = why
			if at != name {
				c.folders[name] = at
			}
		}
	}
}

// listSkipped tells what is left out, a folder like .git once and not each file in it.
func (c *choice) listSkipped() {
	reasons := make(map[string]string)
	for name, why := range c.out {
		if at := c.folders[name]; at != "" {
			name = at
		}
		reasons[name] = why
	}
	for name, why := range reasons {
		c.skipped = append(c.skipped, Skipped{name, why})
	}
	slices.SortFunc(c.skipped, func(a, b Skipped) int { return strings.Compare(a.Name, b.Name) })
}

// sniffAll finds the files with weights, and the indexes, among those that are not left out yet.
func (c *choice) sniffAll(ctx context.Context, src source.Source, l *source.Listing) (files []weightFile, err error) {
	for _, f := range l.Files {
		if _, out := c.out[f.Name]; out {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if in := indexFormat(path.Base(f.Name)); in != noWeights {
			files = append(files, newWeightFile(f.Name, in, f.Size, true))
			continue
		}
		in, err := sniff(ctx, src, f)
		if err != nil {
			return nil, err
		}
		c.formats[f.Name] = in
		if in != noWeights {
			files = append(files, newWeightFile(f.Name, in, f.Size, false))
		}
	}
	return files, nil
}

// leaveTwins leaves out weights that are there in another format.
func (c *choice) leaveTwins(files []weightFile, q *ImportRequest) {
	all := folders(files)
	for _, f := range files {
		why := exported(f, all)
		if d := all[path.Dir(f.name)]; why == "" && d != nil {
			why = d.twin(f)
		}
		if why != "" && !matches(q.Include, f.name) {
			c.out[f.name] = why
		}
	}
}

// take takes a file that no rule has left out.
func (c *choice) take(f source.Info) error {
	if _, out := c.out[f.Name]; out {
		return nil
	}
	if err := checkFileName(f.Name); err != nil {
		if looksNeeded(f.Name) {
			return errors.WithMessage(ErrSource, err.Error())
		}
		c.out[f.Name] = err.Error()
		return nil
	}
	c.files = append(c.files, f)
	return nil
}

// refused passes a source's refusal on if the file could be a part of the model: a link that leads out of the source, whatever
// its name, and what an engine would look for.
func (c *choice) refused(r source.Refusal, q *ImportRequest) error {
	if _, out := c.out[r.Name]; out {
		return nil
	}
	var l *source.LinkError
	if errors.As(r.Err, &l) && l.Outside {
		return errors.WithMessagef(r.Err, "file %.128q: FollowLinks (--follow-links, follow_links) takes it, --exclude leaves it out", r.Name)
	}
	if looksNeeded(r.Name) || matches(q.Include, r.Name) {
		return errors.WithMessagef(r.Err, "file %.128q", r.Name)
	}
	c.out[r.Name] = r.Err.Error()
	return nil
}

func (c *choice) hasWeights() bool {
	return slices.ContainsFunc(c.files, func(f source.Info) bool { return c.formats[f.Name] != noWeights })
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
		if total += f.Size; total < 0 {
			return 0, errors.WithMessage(ErrSource, "the sizes of the files overflow")
		}
	}
	return total, nil
}

// checkSizes refuses files of unknown size.
func checkSizes(l *source.Listing) error {
	for _, f := range l.Files {
		if f.Size < 0 {
			return errors.WithMessagef(ErrSource, "file %.128q: the source does not know its size", f.Name)
		}
	}
	return nil
}

// matching is the first pattern that matches a name: the whole of it, its last element, or, with a slash at the end of the
// pattern, a folder that it lies in.
func matching(patterns []string, name string) (pattern string, ok bool) {
	for _, p := range patterns {
		if matchesOne(p, name) {
			return p, true
		}
	}
	return "", false
}

func matchesOne(p, name string) bool {
	if folder, ok := strings.CutSuffix(p, "/"); ok {
		for d := path.Dir(name); d != "."; d = path.Dir(d) {
			if whole, _ := path.Match(folder, d); whole {
				return true
			}
		}
		return false
	}
	whole, _ := path.Match(p, name)
	last, _ := path.Match(p, path.Base(name))
	return whole || last
}

func matches(patterns []string, name string) bool {
	_, ok := matching(patterns, name)
	return ok
}

func checkPatterns(patterns []string) error {
	for _, p := range patterns {
		if _, err := path.Match(p, ""); err != nil {
			return errors.WithMessagef(ErrInvalid, "pattern %.64q: %v", p, err)
		}
	}
	return nil
}

// checkMatches refuses a pattern that matches nothing: it is misspelt, or meant for another model.
func checkMatches(l *source.Listing, q *ImportRequest) error {
	for _, p := range slices.Concat(q.Include, q.Exclude) {
		if !slices.ContainsFunc(l.Files, func(f source.Info) bool { return matchesOne(p, f.Name) }) &&
			!slices.ContainsFunc(l.Refused, func(r source.Refusal) bool { return matchesOne(p, r.Name) }) {
			return errors.WithMessagef(ErrInvalid, "pattern %.64q matches no file of the source", p)
		}
	}
	return nil
}

// looksNeeded knows weights, configuration, tokenizers, templates and code by their usual names.
func looksNeeded(name string) bool {
	base := strings.ToLower(path.Base(name))
	switch path.Ext(base) {
	case ".json", ".model", ".jinja", ".tiktoken", ".vocab", ".spm", ".py":
		return true
	case ".txt":
		return strings.Contains(base, "vocab") || strings.Contains(base, "merges") || strings.Contains(base, "token")
	}
	return isWeightName(base)
}
