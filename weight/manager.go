package weight

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/artifact/source"
	"github.com/kvcache-ai/mooncake-go/store"
	"github.com/kvcache-ai/mooncake-go/weight/internal/acl"
)

// Options configures a Manager. The zero value is a good default.
type Options struct {
	// Sources opens what ImportRequest.Source names. Default: local paths and file:// URIs
	Sources *source.Mux

	// LoadDir is where Load makes its directories. It should be on the file system of the store's directory, so that
	// files can be hard-linked. Default: "loads" in the store's directory; without one a directory of this process
	LoadDir string

	// UnfinishedTTL is how long an interrupted import stays resumable before Open removes it. Default: 24 h
	UnfinishedTTL time.Duration
}

// Manager keeps model revisions in a store. All methods are safe for concurrent use. A store should have one Manager.
type Manager struct {
	s       *store.Store
	opts    Options
	durable bool

	mu struct {
		sync.Mutex
		closed  bool
		imports map[Ref]*Import      // running, one a revision
		loads   map[Ref]*directory   // made and still open, by revision
		lingers map[Ref][]*directory // given up, but of this process's memory and used by others: see linger.go
		tensors map[Ref]*index       // of the latest revisions asked for
	}
	known     *known
	lockFiles sync.Mutex                          // see directory.go
	link      func(oldname, newname string) error // os.Link
	loadRoot  string
	ownRoot   bool // loadRoot goes with Close
	rootLock  *os.File
	writers   chan struct{} // of large files, over all imports: the SSD tier has no more
}

// Open takes over what an earlier process left: deletions are finished, imports that were interrupted too long ago are
// removed, load directories whose users are gone too.
func Open(ctx context.Context, s *store.Store, opts Options) (*Manager, error) {
	m := &Manager{s: s, opts: opts, durable: s.Dir() != "", known: newKnown(), link: os.Link, writers: make(chan struct{}, MaxParallel)}
	if m.opts.UnfinishedTTL == 0 {
		m.opts.UnfinishedTTL = 24 * time.Hour
	}
	if m.opts.Sources == nil {
		m.opts.Sources = source.NewMux()
	}
	m.mu.imports = make(map[Ref]*Import)
	m.mu.loads = make(map[Ref]*directory)
	m.mu.lingers = make(map[Ref][]*directory)
	m.mu.tensors = make(map[Ref]*index)
	err := m.openLoadRoot()
	if err == nil {
		err = m.recover(ctx)
	}
	if err != nil {
		m.removeOwnRoot()
		return nil, errors.WithMessage(err, "open weights")
	}
	return m, nil
}

func (m *Manager) openLoadRoot() (err error) {
	switch {
	case m.opts.LoadDir != "":
		m.loadRoot, err = filepath.Abs(m.opts.LoadDir)
	case m.s.Dir() != "":
		m.loadRoot, err = filepath.Abs(filepath.Join(m.s.Dir(), "loads"))
	default:
		return m.makeOwnRoot()
	}
	if err != nil {
		return err
	}
	return m.makeLoadRoot()
}

// makeLoadRoot makes the directory of the load directories for this user alone. Those of earlier versions were open to
// all. One that the caller names may be shared with other things, and keeps its mode: the load directories in it are closed.
func (m *Manager) makeLoadRoot() error {
	if err := os.MkdirAll(m.loadRoot, 0o700); err != nil || m.opts.LoadDir != "" {
		return err
	}
	return acl.Close(m.loadRoot)
}

const ownRootPrefix = "mooncake-loads-"

// makeOwnRoot makes a directory for the loads of a store in memory, which this process holds by a lock on it, and
// removes those of processes that are gone.
func (m *Manager) makeOwnRoot() (err error) {
	m.ownRoot = true
	if m.loadRoot, err = os.MkdirTemp("", ownRootPrefix); err != nil {
		return err
	}
	if m.rootLock, err = os.Open(m.loadRoot); err != nil {
		return err
	}
	if err := unix.Flock(int(m.rootLock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(os.TempDir(), ownRootPrefix+"*"))
	for _, root := range old {
		m.removeOldRoot(root)
	}
	return err
}

// removeOwnRoot removes what makeOwnRoot has made.
func (m *Manager) removeOwnRoot() {
	if !m.ownRoot || m.loadRoot == "" {
		return
	}
	_ = os.RemoveAll(m.loadRoot)
	if m.rootLock != nil {
		_ = m.rootLock.Close()
	}
}

// removeOldRoot removes the load directories of a process that is gone. A young directory may be one that its process
// is about to lock.
func (m *Manager) removeOldRoot(root string) {
	d, err := os.Open(root)
	if err != nil {
		return // gone, or another user's
	}
	defer func() { _ = d.Close() }()
	info, err := d.Stat()
	if err != nil || time.Since(info.ModTime()) < time.Minute || unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return
	}
	if m.sweepLoads(root) == nil {
		_ = os.Remove(root) // not while an engine uses what is left in it
	}
}

// recover finishes what was interrupted.
func (m *Manager) recover(ctx context.Context) error {
	if err := m.sweepLoads(m.loadRoot); err != nil {
		return err
	}
	all, err := m.scan(ctx)
	if err != nil {
		return err
	}
	for ref, found := range all {
		if found.record == nil {
			m.learn(found.files())
			continue
		}
		expired := time.Since(found.record.Touched) > m.opts.UnfinishedTTL
		switch {
		case found.record.Deleting || found.manifest == nil && expired:
			err = m.erase(ctx, ref)
		case found.manifest != nil: // the import was done but for its own traces
			m.learn(found.files())
			err = m.forgetImport(ctx, ref)
		default:
			m.learn(found.receipts)
		}
		if err != nil {
			return errors.WithMessagef(err, "revision %v", ref)
		}
	}
	return nil
}

// learn takes in files that are stored, to share their bytes.
func (m *Manager) learn(files []File) {
	for _, file := range files {
		if m.problem(file) == "" {
			m.known.offer(contentOf(file), file.Key)
		}
	}
}

// Close ends running imports, which stay resumable, and gives up the directories of Load that are still open here.
// The store stays open.
func (m *Manager) Close() error {
	m.mu.Lock()
	if m.mu.closed {
		m.mu.Unlock()
		return nil
	}
	m.mu.closed = true
	var imports []*Import
	for _, i := range m.mu.imports {
		imports = append(imports, i)
	}
	var loads []*directory
	for _, d := range m.mu.loads {
		if d.gone == nil {
			d.gone = make(chan struct{})
			loads = append(loads, d)
		}
	}
	m.mu.Unlock()
	for _, i := range imports {
		i.stop()
		<-i.done
	}
	var first error
	for _, d := range loads {
		<-d.ready
		if d.err != nil {
			continue
		}
		if err := m.dropDirectory(d); err != nil && first == nil {
			first = err
		}
	}
	if err := m.endLingers(); err != nil && first == nil {
		first = err
	}
	m.removeOwnRoot()
	return first
}

// record is the METADATA object of an import or a deletion that has not finished.
type record struct {
	Version  int       `json:"format_version"`
	ModelID  string    `json:"model_id"`
	Revision string    `json:"revision"`
	Source   string    `json:"source,omitempty"`
	Deleting bool      `json:"deleting,omitempty"`
	Started  time.Time `json:"started"`
	Touched  time.Time `json:"touched"` // when an import of it last began
	Files    int       `json:"files"`
	Size     int64     `json:"total_size"`
}

// receipt is the METADATA object of a file that an unfinished import has stored completely.
type receipt struct {
	Version  int    `json:"format_version"`
	Name     string `json:"name"`
	Size     int64  `json:"size"`
	SHA256   string `json:"sha256"`
	Identity string `json:"identity"` // of the source file that was read
}

// found is what the store has of one revision.
type found struct {
	manifest *Manifest
	record   *record
	stored   int64 // bytes that receipts stand for
	receipts []File
	problem  error // with the manifest or the record, which is nil then
}

// scan finds all revisions that the store knows of.
func (m *Manager) scan(ctx context.Context) (map[Ref]*found, error) {
	all := make(map[Ref]*found)
	for info, err := range m.s.Objects(ctx, keyPrefix) {
		if err != nil {
			return nil, err
		}
		if info.Type != store.Metadata {
			continue
		}
		ref, rest, err := parseKey(info.Key)
		if err != nil {
			continue // not one of ours
		}
		f := all[ref]
		if f == nil {
			f = new(found)
			all[ref] = f
		}
		if err := m.note(ctx, f, ref, rest); err != nil {
			return nil, errors.WithMessagef(err, "revision %v", ref)
		}
	}
	return all, nil
}

func (m *Manager) note(ctx context.Context, f *found, ref Ref, rest string) (err error) {
	switch {
	case rest == "manifest":
		f.manifest, err = m.Manifest(ctx, ref)
	case rest == "record":
		f.record, err = m.record(ctx, ref)
	case strings.HasPrefix(rest, "receipt:"):
		var r *receipt
		name, _ := decode(strings.TrimPrefix(rest, "receipt:"))
		if r, err = m.receipt(ctx, ref, name); r != nil {
			f.stored += r.Size
			f.receipts = append(f.receipts, File{Name: name, Key: ref.FileKey(name), Size: r.Size, SHA256: r.SHA256})
		}
	}
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, ErrNotFound), errors.Is(err, ErrNotReady):
		return nil // it went meanwhile
	case errors.Is(err, store.ErrClosed), ctx.Err() != nil:
		return err
	case err != nil && f.problem == nil:
		f.problem = err // which must not stand in the way of other revisions
	}
	return nil
}

// Manifest is the manifest of a READY revision.
func (m *Manager) Manifest(ctx context.Context, ref Ref) (*Manifest, error) {
	if err := ref.Validate(); err != nil {
		return nil, err
	}
	p, err := m.s.Get(ctx, ref.ManifestKey(), &store.ReadOptions{Verify: store.VerifyAlways})
	switch {
	case errors.Is(err, store.ErrNotReady): // it is just being written
		return nil, errors.WithMessagef(ErrNotReady, "%v: %s", ref, Importing)
	case errors.Is(err, store.ErrNotFound):
		if ok, _ := m.s.Probe(ref.recordKey()); ok {
			return nil, errors.WithMessagef(ErrNotReady, "%v: %s", ref, Importing)
		}
		return nil, errors.WithMessagef(ErrNotFound, "%v", ref)
	case err != nil:
		return nil, errors.WithMessagef(err, "manifest of %v", ref)
	}
	man, err := ParseManifest(p)
	if err == nil && man.Ref() != ref {
		err = errors.WithMessagef(ErrUnreadable, "it is %v's", man.Ref())
	}
	if err != nil {
		return nil, errors.WithMessagef(err, "%v", ref)
	}
	return man, nil
}

// getJSON reads a METADATA object; nil without an error when there is none.
func getJSON[T any](ctx context.Context, m *Manager, key string) (*T, error) {
	p, err := m.s.Get(ctx, key, &store.ReadOptions{Verify: store.VerifyAlways})
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrNotReady) { // or just being written
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	v := new(T)
	if err := strictJSON(p, v); err != nil {
		return nil, errors.WithMessagef(err, "%.128q", key)
	}
	return v, nil
}

func (m *Manager) record(ctx context.Context, ref Ref) (*record, error) {
	return getJSON[record](ctx, m, ref.recordKey())
}

// receipt is nil also when it does not parse: the file is read again then.
func (m *Manager) receipt(ctx context.Context, ref Ref, name string) (*receipt, error) {
	r, err := getJSON[receipt](ctx, m, ref.receiptKey(name))
	if errors.Is(err, ErrUnreadable) || errors.Is(err, ErrNewer) {
		return nil, nil
	}
	return r, err
}

// metadata are the options of the METADATA objects.
func (m *Manager) metadata() *store.PutOptions {
	return &store.PutOptions{Type: store.Metadata, HardPin: true, Durable: m.durable, Replace: true}
}

func (m *Manager) putJSON(ctx context.Context, key string, v any) error {
	p, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return m.s.Put(ctx, key, p, m.metadata())
}

// remove removes an object that may be gone already.
func (m *Manager) remove(keys ...string) error {
	for i, err := range m.s.RemoveBatch(keys, true) {
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return errors.WithMessagef(err, "remove %.128q", keys[i])
		}
	}
	return nil
}
