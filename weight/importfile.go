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
	batchBytes = 4 << 20  // times MaxParallel is what they take of memory
	linkBytes  = 64 << 10 // files below are stored again: a link costs about as much
)

// identity is what is remembered of a source file, to know it again.
func identity(f source.Info) string {
	return fmt.Sprintf("%d %d %s %s:%s", f.Size, f.ModTime.UnixNano(), f.ETag, f.Digest.Algorithm, f.Digest.Hex)
}

// storing is the storing of all files of an import.
type storing struct {
	*Import
	src source.Source

	mu    sync.Mutex
	files []File
	r     *ImportResult
	err   error
}

// storeAll stores every file and returns them by name. Large files go side by side, small ones in batches.
func (i *Import) storeAll(ctx context.Context, src source.Source, c *choice, r *ImportResult) ([]File, error) {
	s := &storing{Import: i, src: src, r: r}
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

func (s *storing) done(f File, reused bool) {
	s.mu.Lock()
	s.files = append(s.files, f)
	s.mu.Unlock()
	s.filesDone.Add(1)
	s.bytesDone.Add(f.Size)
	if reused {
		s.reused.Add(1)
	}
}

// storeBatch stores one large file or several small ones. It runs beside the import, so a panic is an error.
func (s *storing) storeBatch(ctx context.Context, batch []source.Info) (err error) {
	defer recovered(&err)
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
			s.m.known.forget(s.q.Ref.FileKey(f.Name))
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
	if err != nil || r == nil {
		return false, err
	}
	if r.Identity != identity(f) || r.Size != f.Size { // what it describes is about to be replaced
		return false, s.m.remove(s.q.Ref.receiptKey(f.Name))
	}
	file := File{Name: f.Name, Key: s.q.Ref.FileKey(f.Name), Size: f.Size, SHA256: r.SHA256}
	if s.m.problem(file) != "" {
		return false, nil
	}
	s.m.known.offer(contentOf(file), file.Key)
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

// storeLarge streams a file into the store, hashing it on the way. If what it should share goes away meanwhile, it is
// read once more.
func (s *storing) storeLarge(ctx context.Context, f source.Info) error {
	for first := true; ; first = false {
		put := s.stream
		if first && s.equal[f.Name] != "" {
			put = s.share
		}
		file, linked, err := put(ctx, f)
		if errors.Is(err, errTargetGone) {
			continue // which is forgotten now
		}
		if err == nil {
			err = s.m.s.Put(ctx, s.q.Ref.receiptKey(f.Name), receiptOf(file, f), s.m.metadata())
		}
		if err == nil {
			s.done(file, linked)
		}
		return err
	}
}

// share links a file that was read when the room was checked.
func (s *storing) share(ctx context.Context, f source.Info) (file File, linked bool, err error) {
	file = File{Name: f.Name, Key: s.q.Ref.FileKey(f.Name), Size: f.Size, SHA256: s.equal[f.Name]}
	target := s.m.known.find(contentOf(file))
	if target == "" {
		return file, false, errTargetGone
	}
	return file, true, s.link(ctx, file, target)
}

func (s *storing) stream(ctx context.Context, f source.Info) (file File, linked bool, err error) {
	select {
	case s.m.writers <- struct{}{}:
		defer func() { <-s.m.writers }()
	case <-ctx.Done():
		return file, false, ctx.Err()
	}
	in, err := s.src.Open(ctx, f)
	if err != nil {
		return file, false, err
	}
	defer func() { _ = in.Close() }()
	w, err := s.m.s.Create(ctx, s.q.Ref.FileKey(f.Name), f.Size, s.options())
	if err != nil {
		return file, false, err
	}
	defer w.Abort()
	h := sha256.New()
	if err := s.copy(ctx, w, in, h); err != nil {
		return file, false, err
	}
	file = File{Name: f.Name, Key: s.q.Ref.FileKey(f.Name), Size: f.Size, SHA256: hex.EncodeToString(h.Sum(nil))}
	if err := checkDigest(f, file.SHA256); err != nil {
		return file, false, err
	}
	target, err := s.m.known.claim(ctx, contentOf(file))
	switch {
	case err != nil:
		return file, false, err
	case target == "":
		return file, false, s.settled(file, func() error { return w.Commit(ctx) })
	}
	w.Abort()
	return file, true, s.link(ctx, file, target)
}

// settled stores what was claimed, and says what came of the claim, also if that is a panic: others wait for it.
func (s *storing) settled(f File, put func() error) (err error) {
	err = store.ErrInternal
	defer func() { s.m.known.settle(contentOf(f), f.Key, err) }()
	err = put()
	return err
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
	switch _, err := io.ReadFull(t.r, one[:]); err {
	case nil:
		return errors.WithMessage(source.ErrChanged, "it has grown")
	case io.EOF:
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

// link gives the file the bytes of an equal one that the store has.
func (s *storing) link(ctx context.Context, f File, target string) error {
	c := contentOf(f)
	if err := s.m.remove(f.Key); err != nil { // left by an earlier import
		return err
	}
	o := s.options()
	o.Replace = false
	err := s.m.s.Link(ctx, f.Key, target, o)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrNoReplica),
		errors.Is(err, store.ErrBusy), errors.Is(err, store.ErrNotReady): // it is going, or written anew
		s.m.known.forget(target)
		return errTargetGone
	case err != nil:
		return errors.WithMessagef(err, "share the bytes of %.128q", target)
	case !s.m.known.has(c, target): // it went, and what was linked to may be something else
		return errTargetGone
	}
	s.m.known.offer(c, f.Key)
	s.mu.Lock()
	s.r.Linked++
	s.mu.Unlock()
	return nil
}

func receiptOf(file File, f source.Info) []byte {
	p, err := json.Marshal(receipt{Version: baseVersion, Name: file.Name, Size: file.Size, SHA256: file.SHA256, Identity: identity(f)})
	if err != nil {
		panic("weight: BUG: " + err.Error())
	}
	return p
}

// small is a file that was read whole.
type small struct {
	File
	info source.Info
	data []byte
}

// storeSmall reads files whole and stores them and their receipts with one sync. Those worth it share the bytes of equal
// ones: after the others, so that nobody waits for a claim while it has one.
func (s *storing) storeSmall(ctx context.Context, batch []source.Info) error {
	equal, err := s.putFresh(ctx, batch)
	if err != nil {
		return err
	}
	for _, f := range equal {
		if err := s.shareSmall(ctx, f); err != nil {
			return errors.WithMessagef(err, "file %q", f.Name)
		}
	}
	return nil
}

// putFresh stores those files that nobody else has or is storing, and returns the others. What it claims it settles,
// also after a panic: others wait for it.
func (s *storing) putFresh(ctx context.Context, batch []source.Info) (equal []small, err error) {
	var fresh []small
	err = store.ErrInternal
	defer func() {
		for _, f := range fresh {
			s.settleSmall(f, err)
		}
	}()
	for _, info := range batch {
		f, e := s.readOne(ctx, info)
		if e != nil {
			err = errors.WithMessagef(e, "file %q", info.Name)
			return nil, err
		}
		if f.Size >= linkBytes && !s.m.known.tryClaim(contentOf(f.File)) {
			equal = append(equal, f)
		} else {
			fresh = append(fresh, f)
		}
	}
	err = s.putSmall(ctx, fresh)
	return equal, err
}

func (s *storing) settleSmall(f small, err error) {
	if f.Size >= linkBytes {
		s.m.known.settle(contentOf(f.File), f.Key, err)
	}
}

// shareSmall links a file to an equal one, or stores it if that came to nothing.
func (s *storing) shareSmall(ctx context.Context, f small) error {
	for {
		target, err := s.m.known.claim(ctx, contentOf(f.File))
		if err != nil {
			return err
		}
		if target == "" {
			return s.settled(f.File, func() error { return s.putSmall(ctx, []small{f}) })
		}
		err = s.link(ctx, f.File, target)
		if errors.Is(err, errTargetGone) {
			continue
		}
		if err == nil {
			err = s.m.s.Put(ctx, s.q.Ref.receiptKey(f.Name), receiptOf(f.File, f.info), s.m.metadata())
		}
		if err == nil {
			s.done(f.File, true)
		}
		return err
	}
}

func (s *storing) putSmall(ctx context.Context, batch []small) error {
	var items []store.PutItem
	for _, f := range batch {
		if f.Size == 0 {
			continue
		}
		items = append(items, store.PutItem{Key: f.Key, Parts: [][]byte{f.data}, Opts: s.options()},
			store.PutItem{Key: s.q.Ref.receiptKey(f.Name), Parts: [][]byte{receiptOf(f.File, f.info)}, Opts: s.m.metadata()})
	}
	for k, err := range s.m.s.PutBatch(ctx, items) {
		if err != nil {
			return errors.WithMessagef(err, "%.128q", items[k].Key)
		}
	}
	for _, f := range batch {
		s.done(f.File, false)
	}
	return nil
}

// readOne reads a small file and describes it.
func (s *storing) readOne(ctx context.Context, info source.Info) (small, error) {
	p, err := s.readWhole(ctx, info)
	if err != nil {
		return small{}, err
	}
	sum := sha256.Sum256(p)
	f := small{File{Name: info.Name, Size: info.Size, SHA256: hex.EncodeToString(sum[:])}, info, p}
	if f.Size > 0 {
		f.Key = s.q.Ref.FileKey(info.Name)
	}
	return f, checkDigest(info, f.SHA256)
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
