package weight

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/artifact/source"
	"github.com/kvcache-ai/mooncake-go/store"
)

const (
	smallFile  = 1 << 20 // files below are stored in batches, with one sync for each
	batchFiles = 128
	batchBytes = 16 << 20
)

// identity is what is remembered of a source file, to know it again.
func identity(f source.Info) string {
	return fmt.Sprintf("%d %d %s %s:%s", f.Size, f.ModTime.UnixNano(), f.ETag, f.Digest.Algorithm, f.Digest.Hex)
}

// content identifies bytes.
type content struct {
	sha256 string
	size   int64
}

// storing is the storing of all files of an import.
type storing struct {
	*Import
	src source.Source

	mu    sync.Mutex
	files []File
	known map[content]string // keys that have these bytes, of all READY revisions and this one
	r     *ImportResult
	err   error
}

// storeAll stores every file and returns them by name. Large files go side by side, small ones in batches.
func (i *Import) storeAll(ctx context.Context, src source.Source, c *choice, r *ImportResult) ([]File, error) {
	s := &storing{Import: i, src: src, r: r}
	if err := s.learn(ctx); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	jobs := make(chan []source.Info)
	var workers sync.WaitGroup
	for range i.parallel() {
		workers.Go(func() {
			for batch := range jobs {
				if err := s.storeBatch(ctx, batch); err != nil {
					s.fail(err)
					stop()
				}
			}
		})
	}
	for _, batch := range batches(c.files) {
		select {
		case jobs <- batch:
		case <-ctx.Done():
		}
	}
	close(jobs)
	workers.Wait()
	if s.err != nil {
		return nil, s.err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	slices.SortFunc(s.files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return s.files, nil
}

func (i *Import) parallel() int {
	if i.q.Parallel > 0 {
		return i.q.Parallel
	}
	return 2
}

func (s *storing) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil || errors.Is(s.err, context.Canceled) {
		s.err = err
	}
}

// batches puts each large file by itself, largest first, then the small ones together.
func batches(files []source.Info) (out [][]source.Info) {
	var small []source.Info
	for _, f := range files {
		if f.Size >= smallFile {
			out = append(out, []source.Info{f})
		} else {
			small = append(small, f)
		}
	}
	slices.SortStableFunc(out, func(a, b []source.Info) int { return int(max(-1, min(1, b[0].Size-a[0].Size))) })
	var size int64
	from := 0
	for k, f := range small {
		if size += f.Size; k-from == batchFiles || size > batchBytes {
			out = append(out, small[from:k])
			from, size = k, f.Size
		}
	}
	if from < len(small) {
		out = append(out, small[from:])
	}
	return out
}

// learn finds out which bytes the store has already.
func (s *storing) learn(ctx context.Context) error {
	s.known = make(map[content]string)
	all, err := s.m.scan(ctx)
	if err != nil {
		return err
	}
	for _, f := range all {
		if f.manifest == nil {
			continue
		}
		for _, file := range f.manifest.Files {
			if file.Key != "" && s.m.problem(file) == "" {
				s.known[content{file.SHA256, file.Size}] = file.Key
			}
		}
	}
	return nil
}

func (s *storing) done(f File, reused bool) {
	s.mu.Lock()
	s.files = append(s.files, f)
	if f.Key != "" {
		s.known[content{f.SHA256, f.Size}] = f.Key
	}
	s.mu.Unlock()
	s.filesDone.Add(1)
	s.bytesDone.Add(f.Size)
	if reused {
		s.reused.Add(1)
	}
}

func (s *storing) knownKey(c content) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[c]
}

// storeBatch stores one large file or several small ones.
func (s *storing) storeBatch(ctx context.Context, batch []source.Info) error {
	var fresh []source.Info
	for _, f := range batch {
		if err := ctx.Err(); err != nil {
			return err
		}
		done, err := s.resume(ctx, f)
		if err != nil {
			return errors.WithMessagef(err, "file %q", f.Name)
		}
		if !done {
			fresh = append(fresh, f)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	if fresh[0].Size >= smallFile {
		return errors.WithMessagef(s.storeLarge(ctx, fresh[0]), "file %q", fresh[0].Name)
	}
	return s.storeSmall(ctx, fresh)
}

// resume finds a file that an earlier import stored completely, of a source file that has not changed since.
func (s *storing) resume(ctx context.Context, f source.Info) (done bool, err error) {
	r, err := s.m.receipt(ctx, s.q.Ref, f.Name)
	if err != nil || r == nil || r.Identity != identity(f) || r.Size != f.Size {
		return false, err
	}
	file := File{Name: f.Name, Key: s.q.Ref.FileKey(f.Name), Size: f.Size, SHA256: r.SHA256}
	if s.m.problem(file) != "" {
		return false, nil
	}
	s.mu.Lock()
	s.r.Resumed++
	s.mu.Unlock()
	s.done(file, true)
	return true, nil
}

// options are those of a file's object.
func (i *Import) options() *store.PutOptions {
	return &store.PutOptions{Type: store.Weight, HardPin: !i.q.Unpinned, Durable: i.durable(), Group: i.q.Ref.group(),
		Replicas: i.q.Replicas, Replace: true}
}

// storeLarge streams a file into the store, hashing it on the way.
func (s *storing) storeLarge(ctx context.Context, f source.Info) error {
	in, err := s.src.Open(ctx, f)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	w, err := s.m.s.Create(ctx, s.q.Ref.FileKey(f.Name), f.Size, s.options())
	if err != nil {
		return err
	}
	defer w.Abort()
	h := sha256.New()
	if err := s.copy(ctx, w, in, h); err != nil {
		return err
	}
	file := File{Name: f.Name, Key: s.q.Ref.FileKey(f.Name), Size: f.Size, SHA256: hex.EncodeToString(h.Sum(nil))}
	if err := checkDigest(f, file.SHA256); err != nil {
		return err
	}
	linked, err := s.link(ctx, w, file)
	if err == nil && !linked {
		err = w.Commit(ctx)
	}
	if err != nil {
		return err
	}
	if err := s.m.s.Put(ctx, s.q.Ref.receiptKey(f.Name), receiptOf(file, f), s.m.metadata()); err != nil {
		return err
	}
	s.done(file, linked)
	return nil
}

// copy moves the whole file through the hash into the writer.
func (s *storing) copy(ctx context.Context, w *store.Writer, in source.File, h hash.Hash) error {
	r, err := in.NewReader(ctx, 0, -1)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	tee := &hashingReader{ctx: ctx, r: r, h: h, count: s.read.Add}
	if _, err := w.ReadFrom(tee); err != nil {
		return err
	}
	return tee.end()
}

// hashingReader hashes and counts what is read through it.
type hashingReader struct {
	ctx   context.Context
	r     io.Reader
	h     hash.Hash
	count func(int64) int64
}

func (t *hashingReader) Read(p []byte) (int, error) {
	if err := t.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := t.r.Read(p)
	_, _ = t.h.Write(p[:n])
	t.count(int64(n))
	return n, err
}

// end reads to the end of the stream, which is where a source says that the file has changed.
func (t *hashingReader) end() error {
	var one [1]byte
	switch n, err := t.r.Read(one[:]); {
	case n > 0:
		return errors.WithMessage(source.ErrChanged, "it has grown")
	case err == io.EOF:
		return nil
	default:
		return err
	}
}

// checkDigest compares what was read with what the source claims.
func checkDigest(f source.Info, sum string) error {
	if f.Digest.Algorithm == "sha256" && f.Digest.Hex != sum {
		return errors.WithMessagef(ErrSource, "its SHA-256 is %s, the source says %s", sum, f.Digest.Hex)
	}
	return nil
}

// link gives the file the bytes of an equal one that the store has, instead of those just written.
func (s *storing) link(ctx context.Context, w *store.Writer, f File) (bool, error) {
	target := s.knownKey(content{f.SHA256, f.Size})
	if target == "" || target == f.Key {
		return false, nil
	}
	w.Abort()
	if err := s.m.remove(f.Key); err != nil { // left by an earlier import
		return false, err
	}
	o := s.options()
	o.Replace = false
	if err := s.m.s.Link(ctx, f.Key, target, o); err != nil {
		return false, errors.WithMessagef(err, "share the bytes of %.128q", target)
	}
	s.mu.Lock()
	s.r.Linked++
	s.mu.Unlock()
	return true, nil
}

func receiptOf(file File, f source.Info) []byte {
	p, err := json.Marshal(receipt{Version: FormatVersion, Name: file.Name, Size: file.Size, SHA256: file.SHA256, Identity: identity(f)})
	if err != nil {
		panic("weight: BUG: " + err.Error())
	}
	return p
}

// storeSmall reads files whole and stores them and their receipts with one sync.
func (s *storing) storeSmall(ctx context.Context, batch []source.Info) error {
	var items []store.PutItem
	var files []File
	for _, f := range batch {
		p, err := s.readWhole(ctx, f)
		if err != nil {
			return errors.WithMessagef(err, "file %q", f.Name)
		}
		sum := sha256.Sum256(p)
		file := File{Name: f.Name, Size: f.Size, SHA256: hex.EncodeToString(sum[:])}
		if err := checkDigest(f, file.SHA256); err != nil {
			return errors.WithMessagef(err, "file %q", f.Name)
		}
		files = append(files, file)
		if len(p) > 0 {
			file.Key = s.q.Ref.FileKey(f.Name)
			files[len(files)-1] = file
			items = append(items, store.PutItem{Key: file.Key, Parts: [][]byte{p}, Opts: s.options()})
		}
		if f.Size > 0 {
			items = append(items, store.PutItem{Key: s.q.Ref.receiptKey(f.Name), Parts: [][]byte{receiptOf(file, f)}, Opts: s.m.metadata()})
		}
	}
	for k, err := range s.m.s.PutBatch(ctx, items) {
		if err != nil {
			return errors.WithMessagef(err, "%.128q", items[k].Key)
		}
	}
	for _, f := range files {
		s.done(f, false)
	}
	return nil
}

func (s *storing) readWhole(ctx context.Context, f source.Info) ([]byte, error) {
	in, err := s.src.Open(ctx, f)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	r, err := in.NewReader(ctx, 0, -1)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	p := make([]byte, f.Size)
	if _, err := io.ReadFull(r, p); err != nil {
		return nil, err
	}
	s.read.Add(f.Size)
	return p, (&hashingReader{ctx: ctx, r: r}).end()
}

// compare is an import of a revision that is READY: nothing is written, the bytes must be the same.
func (i *Import) compare(ctx context.Context, src source.Source, c *choice, man *Manifest, r *ImportResult) (*ImportResult, error) {
	i.setPhase("comparing")
	r.Manifest, r.Existed = man, true
	for _, f := range man.Files {
		if p := i.m.problem(f); p != "" {
			return nil, errors.WithMessagef(ErrDamaged, "the revision exists, but its file %q: %s", f.Name, p)
		}
	}
	same, differs := compareNames(c.files, man)
	err := i.compareBytes(ctx, src, c.files[:same], man)
	if err == nil {
		err = differs
	}
	r.Read = i.read.Load()
	return r, err
}

// compareNames compares names and sizes. It returns how many of the source's files are the same in the manifest up to
// the first difference, and what that is.
func compareNames(files []source.Info, man *Manifest) (same int, differs error) {
	for k, f := range files {
		switch {
		case k == len(man.Files) || f.Name < man.Files[k].Name:
			return k, errors.WithMessagef(ErrDifferent, "it has no file %q", f.Name)
		case f.Name > man.Files[k].Name:
			return k, errors.WithMessagef(ErrDifferent, "the source has no file %q", man.Files[k].Name)
		case f.Size != man.Files[k].Size:
			return k, errors.WithMessagef(ErrDifferent, "file %q has %d bytes, the source %d", f.Name, man.Files[k].Size, f.Size)
		}
	}
	if n := len(files); n < len(man.Files) {
		return n, errors.WithMessagef(ErrDifferent, "the source has no file %q", man.Files[n].Name)
	}
	return len(files), nil
}

// compareBytes hashes the source's files, several at a time, and names the first by name that differs.
func (i *Import) compareBytes(ctx context.Context, src source.Source, files []source.Info, man *Manifest) error {
	errs := make([]error, len(files))
	next := make(chan int)
	var workers sync.WaitGroup
	for range i.parallel() {
		workers.Go(func() {
			for k := range next {
				errs[k] = i.compareFile(ctx, src, files[k], man)
			}
		})
	}
	for k := range files {
		next <- k
	}
	close(next)
	workers.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (i *Import) compareFile(ctx context.Context, src source.Source, f source.Info, man *Manifest) error {
	in, err := src.Open(ctx, f)
	if err != nil {
		return errors.WithMessagef(err, "file %q", f.Name)
	}
	defer func() { _ = in.Close() }()
	r, err := in.NewReader(ctx, 0, -1)
	if err != nil {
		return errors.WithMessagef(err, "file %q", f.Name)
	}
	defer func() { _ = r.Close() }()
	h := sha256.New()
	tee := &hashingReader{ctx: ctx, r: r, h: h, count: i.read.Add}
	if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, tee, make([]byte, 1<<20)); err != nil {
		return errors.WithMessagef(err, "file %q", f.Name)
	}
	have, _ := man.File(f.Name)
	if got := hex.EncodeToString(h.Sum(nil)); got != have.SHA256 {
		return errors.WithMessagef(ErrDifferent, "file %q: SHA-256 %s, the source has %s", f.Name, have.SHA256, got)
	}
	i.filesDone.Add(1)
	i.bytesDone.Add(f.Size)
	return nil
}
