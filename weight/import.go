package weight

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/artifact/source"
)

// ImportRequest says what to import.
type ImportRequest struct {
	Ref

	// Source is a local directory, a file:// URI, or a location that Options.Sources knows.
	Source string

	// Include and Exclude are path.Match patterns on a file's name or its last element; one that ends in a slash is for all
	// files below a folder. Without them an import takes every file except those that are known not to be needed: the same
	// weights in another format, version control, caches, training state. ImportResult.Skipped and the manifest have each, with
	// the reason. Include takes such files too; Exclude beats Include. A pattern that matches no file is ErrInvalid; an Exclude
	// of a file that another one needs, a shard that an index names for example, is ErrSource. Default: none
	Include []string
	Exclude []string

	// FollowLinks takes files that symbolic links out of the source lead to, and the directories that links lead to.
	// Without it a link out of the source is an error; those of the Hugging Face cache into its blobs are always followed.
	// Default: false
	FollowLinks bool

	// Code had to be set for the model's Python files to be taken. They are taken always, so that it has no effect; Exclude
	// with "*.py" leaves them out.
	Code bool

	// Unpinned leaves the hard pin off: the store may evict the revision. Default: false
	Unpinned bool

	// Volatile keeps the bytes in memory only, in a store that has a directory: they survive a restart of the process
	// but not of the machine. Default: false. A store without a directory is always volatile
	Volatile bool

	// Replicas is for a cluster. Default: 1
	Replicas int

	// Parallel is how many files are read at a time, at most MaxParallel. Default: 2
	Parallel int
}

// MaxParallel bounds ImportRequest.Parallel.
const MaxParallel = 8

func (q *ImportRequest) check() error {
	if err := q.Ref.Validate(); err != nil {
		return err
	}
	switch {
	case q.Source == "":
		return errors.WithMessage(ErrInvalid, "source is empty")
	case q.Parallel < 0 || q.Parallel > MaxParallel:
		return errors.WithMessagef(ErrInvalid, "%d files at a time, limit %d", q.Parallel, MaxParallel)
	case q.Replicas < 0:
		return errors.WithMessagef(ErrInvalid, "%d replicas", q.Replicas)
	}
	if err := checkPatterns(q.Include); err != nil {
		return err
	}
	return checkPatterns(q.Exclude)
}

// same reports whether two requests ask for the same work.
func (q *ImportRequest) same(o *ImportRequest) bool {
	return q.Ref == o.Ref && q.Source == o.Source && slices.Equal(q.Include, o.Include) && slices.Equal(q.Exclude, o.Exclude) &&
		q.FollowLinks == o.FollowLinks && q.Unpinned == o.Unpinned && q.Volatile == o.Volatile && q.Replicas == o.Replicas
}

// Progress is how far an import is.
type Progress struct {
	Phase      string        `json:"phase"` // listing, checking, importing, comparing, done
	Files      int           `json:"files"` // to be in the revision
	FilesDone  int           `json:"files_done"`
	Bytes      int64         `json:"bytes"` // of all files
	BytesDone  int64         `json:"bytes_done"`
	BytesRead  int64         `json:"bytes_read"` // from the source
	Elapsed    time.Duration `json:"elapsed_ns"`
	FilesReuse int           `json:"files_reused"` // of FilesDone, stored before or linked to equal bytes
}

// ImportResult is what an import did.
type ImportResult struct {
	Manifest *Manifest `json:"manifest"`
	Skipped  []Skipped `json:"skipped"`
	Read     int64     `json:"bytes_read"`    // from the source, of files' content
	Resumed  int       `json:"files_resumed"` // stored by an earlier, interrupted import
	Linked   int       `json:"files_linked"`  // whose bytes the store had already
	Existed  bool      `json:"existed"`       // the revision was READY, with these bytes
}

// Import is a running import. Several callers that ask for the same share one.
type Import struct {
	m        *Manager
	q        ImportRequest
	ctx      context.Context
	cancel   context.CancelFunc
	done     chan struct{}
	deleting bool // not an import at all: holds the revision for a deletion
	started  time.Time
	users    int // guarded by m.mu

	phase     atomic.Pointer[string]
	files     atomic.Int64
	filesDone atomic.Int64
	reused    atomic.Int64
	bytes     atomic.Int64
	bytesDone atomic.Int64
	read      atomic.Int64

	from  string            // the source, without secrets
	equal map[string]string // SHA-256 by name, of files that were found to be in the store already

	result *ImportResult // after done
	err    error
}

// Import imports a revision and waits for it. Interrupted, by ctx or a crash, it leaves what is stored completely, and
// the next Import of the revision goes on from there.
func (m *Manager) Import(ctx context.Context, q ImportRequest) (*ImportResult, error) {
	i, err := m.Start(ctx, q)
	if err != nil {
		return nil, err
	}
	select {
	case <-i.done:
		return i.result, i.err
	case <-ctx.Done():
	}
	if i.leave() {
		<-i.done
	}
	return nil, errors.WithMessagef(ctx.Err(), "import %v", q.Ref)
}

// Start begins an import and returns at once. A second Start of the same import while it runs returns the running one;
// one of the same revision that asks for something else waits for it first. ctx bounds only that wait.
func (m *Manager) Start(ctx context.Context, q ImportRequest) (*Import, error) {
	if err := q.check(); err != nil {
		return nil, errors.WithMessage(err, "import")
	}
	for {
		i, running, err := m.startOrJoin(&q)
		if err != nil || i != nil {
			return i, err
		}
		select {
		case <-running.done:
		case <-ctx.Done():
			return nil, errors.WithMessagef(ctx.Err(), "import %v", q.Ref)
		}
	}
}

func (m *Manager) startOrJoin(q *ImportRequest) (mine, running *Import, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		return nil, nil, ErrClosed
	}
	if i := m.mu.imports[q.Ref]; i != nil {
		if i.deleting || !i.q.same(q) || i.ctx.Err() != nil {
			return nil, i, nil
		}
		i.users++
		return i, nil, nil
	}
	i := &Import{m: m, q: *q, done: make(chan struct{}), started: time.Now(), users: 1}
	i.ctx, i.cancel = context.WithCancel(context.Background())
	i.setPhase("listing")
	m.mu.imports[q.Ref] = i
	go i.run()
	return i, nil, nil
}

// Ref is the revision that is imported.
func (i *Import) Ref() Ref { return i.q.Ref }

// Done is closed when the import has ended.
func (i *Import) Done() <-chan struct{} { return i.done }

// Wait waits for the end of the import, or of ctx, which does not end the import.
func (i *Import) Wait(ctx context.Context) (*ImportResult, error) {
	select {
	case <-i.done:
		return i.result, i.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Cancel says that this caller has no more interest; the import ends when no caller has, and Cancel reports whether
// that is now: Wait then returns soon, and the source is not used any more. What the import has stored completely stays
// for the next one.
func (i *Import) Cancel() (last bool) { return i.leave() }

// leave reports whether the import ends with it. The cancellation is seen by whoever looks under the lock, so that
// nobody joins an import that is about to end.
func (i *Import) leave() (last bool) {
	i.m.mu.Lock()
	defer i.m.mu.Unlock()
	i.users--
	if i.users > 0 {
		return false
	}
	i.cancel()
	return true
}

func (i *Import) stop() { i.cancel() }

// Progress can be called at any time.
func (i *Import) Progress() Progress {
	return Progress{Phase: *i.phase.Load(), Files: int(i.files.Load()), FilesDone: int(i.filesDone.Load()),
		Bytes: i.bytes.Load(), BytesDone: i.bytesDone.Load(), BytesRead: i.read.Load(), Elapsed: time.Since(i.started),
		FilesReuse: int(i.reused.Load())}
}

func (i *Import) setPhase(p string) { i.phase.Store(&p) }

func (i *Import) run() {
	r, err := i.do(i.ctx)
	i.m.mu.Lock()
	delete(i.m.mu.imports, i.q.Ref)
	i.m.mu.Unlock()
	i.result, i.err = r, errors.WithMessagef(err, "import %v", i.q.Ref)
	i.setPhase("done")
	i.cancel()
	close(i.done)
}

// do is the import. It has no caller, so a panic is its error.
func (i *Import) do(ctx context.Context) (r *ImportResult, err error) {
	defer recovered(&err)
	return i.importAll(ctx)
}

// importAll is the import: choose and check the files, refuse what can't end well, then store them, then the manifest.
func (i *Import) importAll(ctx context.Context) (*ImportResult, error) {
	src, err := i.m.opts.Sources.Open(ctx, i.q.Source)
	if err != nil {
		return nil, err
	}
	defer func() { _ = src.Close() }()
	if err := i.followLinks(src); err != nil {
		return nil, err
	}
	i.from = src.String()
	c, err := i.plan(ctx, src)
	if err != nil {
		return nil, err
	}
	r := &ImportResult{Skipped: c.skipped}
	man, err := i.m.Manifest(ctx, i.q.Ref)
	switch {
	case err == nil:
		return i.compare(ctx, src, c, man, r)
	case !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrNotReady):
		return nil, err
	}
	if err := i.begin(ctx, src, c); err != nil {
		return nil, err
	}
	i.setPhase("importing")
	files, err := i.storeAll(ctx, src, c, r)
	if err != nil {
		return nil, err
	}
	r.Read = i.read.Load()
	r.Manifest, err = i.publish(ctx, files, c.skipped)
	return r, err
}

func (i *Import) followLinks(src source.Source) error {
	if !i.q.FollowLinks {
		return nil
	}
	f, ok := src.(source.LinkFollower)
	if !ok {
		return errors.WithMessagef(ErrInvalid, "%s: this source has no links to follow", src)
	}
	f.FollowLinks()
	return nil
}

// plan lists the source, chooses files and checks that they are a whole model.
func (i *Import) plan(ctx context.Context, src source.Source) (*choice, error) {
	l, err := src.List(ctx)
	if err != nil {
		return nil, err
	}
	i.setPhase("checking")
	if err := checkSizes(l); err != nil {
		return nil, err
	}
	c, err := choose(ctx, src, l, &i.q)
	if err != nil {
		return nil, err
	}
	total, err := c.size()
	if err != nil {
		return nil, err
	}
	if !c.hasWeights() {
		return nil, errors.WithMessagef(ErrSource, "%s: no weights among its %d files", src, len(l.Files))
	}
	i.files.Store(int64(len(c.files)))
	i.bytes.Store(total)
	return c, checkContents(ctx, src, l, c)
}

// begin refuses an import that has no room, and writes the record that says that one is under way.
func (i *Import) begin(ctx context.Context, src source.Source, c *choice) error {
	rec, err := i.m.record(ctx, i.q.Ref)
	if err != nil {
		return err
	}
	if rec != nil && rec.Deleting {
		if err := i.m.erase(ctx, i.q.Ref); err != nil {
			return err
		}
		rec = nil
	}
	if err := i.checkRoom(ctx, src, c); err != nil {
		return err
	}
	now := time.Now().UTC()
	r := record{Version: baseVersion, ModelID: i.q.ModelID, Revision: i.q.Revision, Source: i.from, Started: now,
		Touched: now, Files: len(c.files), Size: i.bytes.Load()}
	if rec != nil {
		r.Started = rec.Started
	}
	return i.m.putJSON(ctx, i.q.Ref.recordKey(), r)
}

func (i *Import) durable() bool { return i.m.durable && !i.q.Volatile }

// publish writes the manifest, which makes the revision READY, and removes the traces of the import.
func (i *Import) publish(ctx context.Context, files []File, skipped []Skipped) (*Manifest, error) {
	man := &Manifest{Version: baseVersion, ModelID: i.q.ModelID, Revision: i.q.Revision, Source: i.from,
		Status: Ready, Files: files, Skipped: skipped}
	if len(skipped) > 0 {
		man.Version = FormatVersion
	}
	for _, f := range files {
		man.Size += f.Size
	}
	if err := man.validate(); err != nil {
		return nil, errors.WithMessage(ErrSource, err.Error())
	}
	for _, f := range files {
		if p := i.m.problem(f); p != "" {
			return nil, errors.WithMessagef(ErrDamaged, "file %q: %s", f.Name, p)
		}
	}
	p, err := man.Encode()
	if err != nil {
		return nil, err
	}
	if err := i.m.s.Put(ctx, i.q.Ref.ManifestKey(), p, i.m.metadata()); err != nil {
		return nil, errors.WithMessage(err, "manifest")
	}
	return man, i.m.forgetImport(ctx, i.q.Ref)
}
