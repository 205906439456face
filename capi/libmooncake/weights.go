package main

// #include <stdlib.h>
// #include "guard.h"
import "C"

import (
	"context"
	"io"
	"math"
	"os"
	"unsafe"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/store"
	"github.com/kvcache-ai/mooncake-go/weight"
)

// weightHandle is what a mooncake_weight_t stands for.
type weightHandle struct {
	*weights
	pool   *pool
	tenant string
}

var weightHandles = handles[*weightHandle]{kind: kindWeights}

//export mc_weight_open
func mc_weight_open(e *C.mc_error, h C.uintptr_t, o *C.mooncake_weight_options_t, out *C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	*out = 0
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	opts := weight.Options{LoadDir: C.GoString(o.load_dir), UnfinishedTTL: milliseconds(o.unfinished_ttl_ms)}
	w, err := s.pool.enterWeights(always, s.Store, s.tenant, opts)
	if err != nil {
		return fail(e, err)
	}
	*out = C.uintptr_t(weightHandles.add(&weightHandle{w, s.pool, s.tenant}))
	return 0
}

//export mc_weight_close
func mc_weight_close(e *C.mc_error, h C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	w, err := weightHandles.take(C.uint64_t(h))
	if err == nil {
		err = w.pool.leaveWeights(w.tenant, w.weights)
	}
	if err != nil {
		return fail(e, err)
	}
	return 0
}

// revision finds what most calls on weights start with.
func revision(h C.uintptr_t, model, rev *C.char) (*weight.Manager, weight.Ref, error) {
	w, err := weightHandles.get(C.uint64_t(h))
	if err != nil {
		return nil, weight.Ref{}, err
	}
	return w.Manager, weight.Ref{ModelID: C.GoString(model), Revision: C.GoString(rev)}, nil
}

//export mc_weight_import
func mc_weight_import(e *C.mc_error, h C.uintptr_t, q *C.mooncake_weight_import_t, out *C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	*out = 0
	m, ref, err := revision(h, q.model_id, q.revision)
	if err != nil {
		return fail(e, err)
	}
	request := weight.ImportRequest{Ref: ref, Source: C.GoString(q.source), Include: goStrings(q.include, q.include_count),
		Exclude: goStrings(q.exclude, q.exclude_count), FollowLinks: q.follow_links != 0, Unpinned: q.unpinned != 0,
		Volatile: q.memory_only != 0, Parallel: int(q.parallel), Replicas: int(min(q.replica_num, math.MaxInt32))}
	return start(e, out, func(ctx context.Context, op *operation, e *C.mc_error) C.int {
		if err := op.runImport(ctx, m, request); err != nil {
			return fail(e, err)
		}
		return 0
	})
}

func (o *operation) runImport(ctx context.Context, m *weight.Manager, q weight.ImportRequest) error {
	imp, err := m.Start(ctx, q)
	if err != nil {
		return err
	}
	o.mu.Lock()
	o.mu.imp = imp
	o.mu.Unlock()
	o.outcome, err = imp.Wait(ctx)
	if ctx.Err() != nil && imp.Cancel() { // whoever frees the operation may take the source away then
		o.outcome, err = imp.Wait(always)
	}
	return err
}

func goStrings(list **C.char, count C.size_t) (all []string) {
	for _, s := range unsafe.Slice(list, int(count)) {
		all = append(all, C.GoString(s))
	}
	return all
}

var phases = map[string]C.int{"listing": C.MOONCAKE_IMPORT_LISTING, "checking": C.MOONCAKE_IMPORT_CHECKING,
	"importing": C.MOONCAKE_IMPORT_IMPORTING, "comparing": C.MOONCAKE_IMPORT_COMPARING, "done": C.MOONCAKE_IMPORT_DONE}

//export mc_weight_import_progress
func mc_weight_import_progress(e *C.mc_error, h C.uintptr_t, out *C.mooncake_weight_progress_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	op, err := operations.get(C.uint64_t(h))
	if err != nil {
		return fail(e, err)
	}
	op.mu.Lock()
	imp := op.mu.imp
	op.mu.Unlock()
	if imp == nil {
		return 0
	}
	p := imp.Progress()
	out.phase = phases[p.Phase]
	out.files, out.files_done, out.files_reused = C.int64_t(p.Files), C.int64_t(p.FilesDone), C.int64_t(p.FilesReuse)
	out.bytes, out.bytes_done, out.bytes_read = C.int64_t(p.Bytes), C.int64_t(p.BytesDone), C.int64_t(p.BytesRead)
	out.elapsed_ms = C.int64_t(p.Elapsed.Milliseconds())
	return 0
}

//export mc_weight_import_result
func mc_weight_import_result(e *C.mc_error, h C.uintptr_t, out **C.char) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	*out = nil
	op, err := operations.get(C.uint64_t(h))
	if err != nil {
		return fail(e, err)
	}
	if code := op.resultTo(e); code != 0 {
		return code
	}
	if op.outcome == nil {
		return fail(e, errors.WithMessage(store.ErrInvalidParams, "the operation is not an import"))
	}
	outcome := *op.outcome
	outcome.Skipped = append([]weight.Skipped{}, outcome.Skipped...)
	return jsonTo(e, out, outcome)
}

//export mc_weight_manifest
func mc_weight_manifest(e *C.mc_error, h C.uintptr_t, model, rev *C.char, out **C.char) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	*out = nil
	m, ref, err := revision(h, model, rev)
	if err != nil {
		return fail(e, err)
	}
	manifest, err := m.Manifest(always, ref)
	if err != nil {
		return fail(e, err)
	}
	return jsonTo(e, out, manifest)
}

//export mc_weight_check
func mc_weight_check(e *C.mc_error, h C.uintptr_t, model, rev *C.char, deep C.int, out **C.char) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	*out = nil
	m, ref, err := revision(h, model, rev)
	if err != nil {
		return fail(e, err)
	}
	depth := weight.Quick
	if deep != 0 {
		depth = weight.Deep
	}
	report, err := m.Check(always, ref, depth)
	if err != nil {
		return fail(e, err)
	}
	if code := jsonTo(e, out, report); code != 0 {
		return code
	}
	if err := report.Err(); err != nil {
		return fail(e, err)
	}
	return 0
}

//export mc_weight_list
func mc_weight_list(e *C.mc_error, h C.uintptr_t, model *C.char, out **C.char) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	*out = nil
	m, ref, err := revision(h, model, nil)
	if err != nil {
		return fail(e, err)
	}
	all, err := m.List(always, ref.ModelID)
	if err != nil {
		return fail(e, err)
	}
	return jsonTo(e, out, append([]weight.Summary{}, all...))
}

//export mc_weight_usage
func mc_weight_usage(e *C.mc_error, h C.uintptr_t, out **C.char) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	*out = nil
	m, _, err := revision(h, nil, nil)
	if err != nil {
		return fail(e, err)
	}
	all, total, err := m.Usage(always)
	if err != nil {
		return fail(e, err)
	}
	return jsonTo(e, out, struct {
		Revisions []weight.Usage `json:"revisions"`
		Total     int64          `json:"total_bytes"`
	}{append([]weight.Usage{}, all...), total})
}

//export mc_weight_delete
func mc_weight_delete(e *C.mc_error, h C.uintptr_t, model, rev *C.char, unfinished C.int) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	m, ref, err := revision(h, model, rev)
	switch {
	case err != nil:
	case unfinished != 0:
		err = m.Abort(always, ref)
	default:
		err = m.Delete(always, ref)
	}
	if err != nil {
		return fail(e, err)
	}
	return 0
}

// loadedDir is a loaded revision and its path in C's memory.
type loadedDir struct {
	*weight.Loaded
	dir *C.char
}

var loads = handles[loadedDir]{kind: kindLoaded}

//export mc_weight_load
func mc_weight_load(e *C.mc_error, h C.uintptr_t, model, rev *C.char, verify C.int, out *C.mooncake_loaded_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	m, ref, err := revision(h, model, rev)
	if err != nil {
		return fail(e, err)
	}
	l, err := m.Load(always, ref, &weight.LoadOptions{Verify: verify != 0})
	if err != nil {
		return fail(e, err)
	}
	dir := C.CString(l.Dir())
	out.dir, out.lock_fd = dir, C.int(l.LockFile().Fd())
	out.handle = loads.add(loadedDir{l, dir})
	return 0
}

//export mc_loaded_close
func mc_loaded_close(e *C.mc_error, handle C.uint64_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	l, err := loads.take(handle)
	if err == nil {
		C.free(unsafe.Pointer(l.dir))
		err = l.Close()
	}
	if err != nil {
		return fail(e, err)
	}
	return 0
}

//export mc_loaded_hand_out
func mc_loaded_hand_out(e *C.mc_error, handle C.uint64_t, user *C.char) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	l, err := loads.get(handle)
	if err == nil {
		err = l.HandOut(C.GoString(user))
	}
	if err != nil {
		return fail(e, err)
	}
	return 0
}

//export mc_loaded_detach
func mc_loaded_detach(e *C.mc_error, handle C.uint64_t, out *C.int) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	*out = -1
	l, err := loads.get(handle)
	if err != nil {
		return fail(e, err)
	}
	f, err := l.Detach()
	if err != nil {
		return fail(e, err)
	}
	fd, err := ownFD(f)
	if err != nil {
		return fail(e, err)
	}
	*out = C.int(fd)
	if _, err := loads.take(handle); err == nil {
		C.free(unsafe.Pointer(l.dir))
	}
	return 0
}

var weightFiles = handles[*weight.Reader]{kind: kindWeightFile}

//export mc_weight_open_file
func mc_weight_open_file(e *C.mc_error, h C.uintptr_t, model, rev, name *C.char, out *C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	*out = 0
	m, ref, err := revision(h, model, rev)
	if err != nil {
		return fail(e, err)
	}
	f, err := m.Open(always, ref, C.GoString(name))
	if err != nil {
		return fail(e, err)
	}
	*out = C.uintptr_t(weightFiles.add(f))
	return 0
}

//export mc_weight_file_size
func mc_weight_file_size(e *C.mc_error, h C.uintptr_t) (r C.int64_t) {
	defer barrier64(e, &r)
	failpoint()
	f, err := weightFiles.get(C.uint64_t(h))
	if err != nil {
		return C.int64_t(fail(e, err))
	}
	return C.int64_t(f.Size())
}

//export mc_weight_file_read_at
func mc_weight_file_read_at(e *C.mc_error, h C.uintptr_t, buffer unsafe.Pointer, size C.size_t, offset C.uint64_t) (r C.int64_t) {
	defer barrier64(e, &r)
	failpoint()
	f, err := weightFiles.get(C.uint64_t(h))
	if err != nil {
		return C.int64_t(fail(e, err))
	}
	if offset >= C.uint64_t(f.Size()) {
		return 0
	}
	n, err := f.ReadAt(bytesAt(buffer, min(size, C.size_t(f.Size())-C.size_t(offset))), int64(offset))
	if err != nil && err != io.EOF {
		return C.int64_t(fail(e, err))
	}
	return C.int64_t(n)
}

//export mc_weight_file_close
func mc_weight_file_close(e *C.mc_error, h C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	if _, err := weightFiles.take(C.uint64_t(h)); err != nil {
		return fail(e, err)
	}
	return 0
}

//export mc_weight_tensors
func mc_weight_tensors(e *C.mc_error, h C.uintptr_t, model, rev *C.char, out **C.mooncake_tensor_list_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	*out = nil
	m, ref, err := revision(h, model, rev)
	if err != nil {
		return fail(e, err)
	}
	tensors, err := m.Tensors(always, ref)
	if err == nil {
		*out, err = tensorList(tensors)
	}
	if err != nil {
		return fail(e, err)
	}
	return 0
}

// tensorList is tensors in one block of C's memory: the list, the tensors, their shapes, their strings.
func tensorList(tensors []weight.Tensor) (*C.mooncake_tensor_list_t, error) {
	const head, each = unsafe.Sizeof(C.mooncake_tensor_list_t{}), unsafe.Sizeof(C.mooncake_tensor_t{})
	dims, text := 0, 0
	for _, t := range tensors {
		dims += len(t.Shape)
		text += len(t.Name) + len(t.DType) + len(t.File) + 3
	}
	n := len(tensors)
	p := C.mc_malloc(C.size_t(int(head) + n*int(each) + 8*dims + text))
	if p == nil {
		return nil, errors.WithMessagef(store.ErrNoSpace, "no memory for a list of %d tensors", n)
	}
	first := unsafe.Add(p, head)
	shapes := unsafe.Slice((*int64)(unsafe.Add(first, n*int(each))), dims)
	chars := unsafe.Slice((*byte)(unsafe.Add(first, n*int(each)+8*dims)), text)
	str := func(s string) *C.char {
		to := chars
		to[copy(to, s)] = 0
		chars = chars[len(s)+1:]
		return (*C.char)(unsafe.Pointer(unsafe.SliceData(to)))
	}
	list := (*C.mooncake_tensor_list_t)(p)
	*list = C.mooncake_tensor_list_t{count: C.size_t(n), tensor_size: C.size_t(each), tensors: (*C.mooncake_tensor_t)(first)}
	for i, t := range tensors {
		unsafe.Slice((*C.mooncake_tensor_t)(first), n)[i] = C.mooncake_tensor_t{name: str(t.Name), dtype: str(t.DType),
			shape: (*C.int64_t)(unsafe.Pointer(unsafe.SliceData(shapes))), dims: C.size_t(len(t.Shape)), file: str(t.File),
			offset: C.uint64_t(t.Off), size: C.uint64_t(t.Len)}
		shapes = shapes[copy(shapes, t.Shape):]
	}
	return list, nil
}

//export mc_weight_read_tensor
func mc_weight_read_tensor(e *C.mc_error, h C.uintptr_t, model, rev, name *C.char, buffer unsafe.Pointer, size C.size_t) (r C.int64_t) {
	defer barrier64(e, &r)
	failpoint()
	m, ref, err := revision(h, model, rev)
	if err != nil {
		return C.int64_t(fail(e, err))
	}
	n, err := m.ReadTensor(always, ref, C.GoString(name), bytesAt(buffer, size))
	if err != nil {
		return C.int64_t(fail(e, err))
	}
	return C.int64_t(n)
}

// tensorView is a tensor's view as one that can be handed out.
type tensorView struct{ *weight.TensorView }

func (v tensorView) Segments() [][]byte {
	if v.Len == 0 {
		return nil
	}
	return [][]byte{v.Bytes()}
}

//export mc_weight_view_tensor
func mc_weight_view_tensor(e *C.mc_error, h C.uintptr_t, model, rev, name *C.char, out *C.mooncake_view_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	m, ref, err := revision(h, model, rev)
	if err != nil {
		return fail(e, err)
	}
	v, err := m.ViewTensor(always, ref, C.GoString(name))
	if err != nil {
		return fail(e, err)
	}
	setView(out, tensorView{v}, v.Len)
	return 0
}

// ownFD is a descriptor of a file that nothing in Go will close. It is not closed on exec.
func ownFD(f *os.File) (int, error) {
	defer f.Close()
	fd, err := unix.Dup(int(f.Fd()))
	return fd, errors.Wrap(err, "dup")
}
