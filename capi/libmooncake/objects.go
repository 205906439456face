package main

// #include <stdlib.h>
// #include "guard.h"
import "C"

import (
	"context"
	"slices"
	"time"
	"unsafe"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store"
)

// putOptions are those of a put; nil is the default. The group still is the caller's memory.
func putOptions(o *C.mooncake_put_options_t) *store.PutOptions {
	if o == nil {
		return nil
	}
	return &store.PutOptions{Type: store.ObjectType(o._type), HardPin: o.hard_pin != 0, SoftPin: milliseconds(o.soft_pin_ms),
		Group: keyAt(o.group, o.group_size), Durable: o.durable != 0, OwnFile: o.own_file != 0, Replace: o.replace != 0,
		Replicas: int(min(o.replica_num, 1<<20))}
}

// kept is err, but that a key that exists is fine if the caller wants its bytes kept.
func kept(err error, keep bool) error {
	if err != nil && keep && errors.Is(err, store.ErrExists) {
		return nil
	}
	return err
}

//export mc_put
func mc_put(e *C.mc_error, h C.uintptr_t, key *C.char, keySize C.size_t, data unsafe.Pointer, size C.size_t,
	o *C.mooncake_put_options_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	if err := kept(s.Put(always, keyAt(key, keySize), bytesAt(data, size), putOptions(o)), o != nil && o.keep != 0); err != nil {
		return fail(e, err)
	}
	return 0
}

var (
	verifyAlways = &store.ReadOptions{Verify: store.VerifyAlways}
	verifyNever  = &store.ReadOptions{Verify: store.VerifyNever}
)

func readOptions(flags C.uint) *store.ReadOptions {
	switch {
	case flags&C.MOONCAKE_VERIFY_ALWAYS != 0:
		return verifyAlways
	case flags&C.MOONCAKE_VERIFY_NEVER != 0:
		return verifyNever
	}
	return nil
}

//export mc_get
func mc_get(e *C.mc_error, h C.uintptr_t, key *C.char, keySize C.size_t, buffer unsafe.Pointer, size C.size_t,
	flags C.uint) (r C.int64_t) {
	defer barrier64(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err != nil {
		return C.int64_t(fail(e, err))
	}
	n, err := s.GetInto(always, keyAt(key, keySize), bytesAt(buffer, size), readOptions(flags))
	if err != nil {
		return C.int64_t(fail(e, err))
	}
	return C.int64_t(n)
}

//export mc_get_copy
func mc_get_copy(e *C.mc_error, h C.uintptr_t, key *C.char, keySize C.size_t, flags C.uint, out *unsafe.Pointer,
	sizeOut *C.size_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	*out, *sizeOut = nil, 0
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	v, err := s.View(always, keyAt(key, keySize), readOptions(flags))
	if err != nil {
		return fail(e, err)
	}
	defer v.Close()
	p := C.mc_malloc(C.size_t(v.Size()))
	if p == nil {
		return fail(e, errors.WithMessagef(store.ErrNoSpace, "get: no memory for %d bytes", v.Size()))
	}
	to := bytesAt(p, C.size_t(v.Size()))
	for _, piece := range v.Segments() {
		to = to[copy(to, piece):]
	}
	*out, *sizeOut = p, C.size_t(v.Size())
	return 0
}

//export mc_exist
func mc_exist(e *C.mc_error, h C.uintptr_t, key *C.char, keySize C.size_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	found, err := s.Exists(keyAt(key, keySize))
	if err != nil {
		return fail(e, err)
	}
	return truth(found)
}

func truth(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

//export mc_get_size
func mc_get_size(e *C.mc_error, h C.uintptr_t, key *C.char, keySize C.size_t) (r C.int64_t) {
	defer barrier64(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err != nil {
		return C.int64_t(fail(e, err))
	}
	n, err := s.leasedSize(keyAt(key, keySize))
	if err != nil {
		return C.int64_t(fail(e, err))
	}
	return C.int64_t(n)
}

// leasedSize is an object's size, with the lease that the C++ store gives to who asks for it.
func (s *seat) leasedSize(key string) (int64, error) {
	if _, err := s.Exists(key); err != nil {
		return 0, err
	}
	info, err := s.Stat(key)
	return info.Size, err
}

//export mc_stat
func mc_stat(e *C.mc_error, h C.uintptr_t, key *C.char, keySize C.size_t, out *C.mooncake_object_info_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	info, err := s.Stat(keyAt(key, keySize))
	if err != nil {
		return fail(e, err)
	}
	setInfo(out, &info)
	return 0
}

// setInfo fills in all but the key.
func setInfo(out *C.mooncake_object_info_t, info *store.Info) {
	out.size, out.generation, out.digest = C.uint64_t(info.Size), C.uint64_t(info.Generation), C.uint64_t(info.Digest)
	out._type, out.readers = C.uint32_t(info.Type), C.int64_t(info.Readers)
	out.hard_pin, out.durable, out.link = truth(info.HardPin), truth(info.Durable), truth(info.Link)
	out.in_memory, out.on_ssd = truth(info.InMemory), truth(info.OnSSD)
	out.soft_pin_ms, out.lease_ms = left(info.SoftPin), left(info.Lease)
	out.group_size = C.size_t(len(info.Group))
	if out.group != nil {
		copy(bytesAt(unsafe.Pointer(out.group), out.group_capacity), info.Group)
	}
}

// left is how many milliseconds there are until t.
func left(t time.Time) C.int64_t {
	if t.IsZero() {
		return 0
	}
	return C.int64_t(max(0, (time.Until(t)+time.Millisecond-1)/time.Millisecond))
}

//export mc_link
func mc_link(e *C.mc_error, h C.uintptr_t, key *C.char, keySize C.size_t, target *C.char, targetSize C.size_t,
	o *C.mooncake_put_options_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err == nil {
		err = kept(s.Link(always, keyAt(key, keySize), keyAt(target, targetSize), putOptions(o)), o.keep != 0)
	}
	if err != nil {
		return fail(e, err)
	}
	return 0
}

//export mc_set_pins
func mc_set_pins(e *C.mc_error, h C.uintptr_t, name *C.char, size C.size_t, group C.int, hard C.int, softMS C.int64_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	var change store.PinChange
	if hard >= 0 {
		change.HardPin = new(bool)
		*change.HardPin = hard != 0
	}
	if softMS >= 0 {
		change.SoftPin = new(time.Duration)
		*change.SoftPin = milliseconds(C.uint64_t(softMS))
	}
	if group != 0 {
		err = s.SetGroupPins(keyAt(name, size), change)
	} else {
		err = s.SetPins(keyAt(name, size), change)
	}
	if err != nil {
		return fail(e, err)
	}
	return 0
}

//export mc_remove
func mc_remove(e *C.mc_error, h C.uintptr_t, key *C.char, keySize C.size_t, force C.int) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err == nil {
		err = s.Remove(keyAt(key, keySize), force != 0)
	}
	if err != nil {
		return fail(e, err)
	}
	return 0
}

//export mc_group
func mc_group(e *C.mc_error, h C.uintptr_t, group *C.char, size C.size_t, out **C.mooncake_key_list_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	*out = nil
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	keys, err := s.Group(keyAt(group, size))
	if errors.Is(err, store.ErrGroupNotFound) {
		keys, err = nil, nil // mooncake.h: an empty list
	}
	if err == nil {
		*out, err = keyList(keys)
	}
	if err != nil {
		return fail(e, err)
	}
	return 0
}

//export mc_remove_group
func mc_remove_group(e *C.mc_error, h C.uintptr_t, group *C.char, size C.size_t, force C.int,
	out **C.mooncake_key_list_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	if out != nil {
		*out = nil
	}
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	removed, err := s.RemoveGroup(keyAt(group, size), force != 0)
	if err == nil && out != nil {
		*out, err = keyList(removed)
	}
	if err != nil {
		return fail(e, err)
	}
	return 0
}

// keyList is keys in one block of C's memory: the list, their sizes, their bytes.
func keyList(keys []string) (*C.mooncake_key_list_t, error) {
	bytes := 0
	for _, key := range keys {
		bytes += len(key)
	}
	head := int(unsafe.Sizeof(C.mooncake_key_list_t{}))
	p := C.mc_malloc(C.size_t(head + 4*len(keys) + bytes))
	if p == nil {
		return nil, errors.WithMessagef(store.ErrNoSpace, "no memory for a list of %d keys", len(keys))
	}
	list := (*C.mooncake_key_list_t)(p)
	sizes := unsafe.Add(p, head)
	data := unsafe.Add(sizes, 4*len(keys))
	*list = C.mooncake_key_list_t{count: C.size_t(len(keys)), data: (*C.char)(data), sizes: (*C.uint32_t)(sizes)}
	to := unsafe.Slice((*byte)(data), bytes)
	for i, key := range keys {
		unsafe.Slice((*uint32)(sizes), len(keys))[i] = uint32(len(key))
		to = to[copy(to, key):]
	}
	return list, nil
}

// putAll stores b.keys and gives each its result. Empty objects are an error, or skipped.
func putAll(ctx context.Context, e *C.mc_error, s *seat, b *batch, m buffers, o *C.mooncake_put_options_t, skipEmpty bool,
	out *C.int) C.int {
	if err := b.plan(m, o); err != nil {
		return fail(e, err)
	}
	return putPlanned(ctx, e, s, b, o.keep != 0, skipEmpty, out)
}

// plan sets b.puts to what is to be stored under b.keys.
func (b *batch) plan(m buffers, o *C.mooncake_put_options_t) error {
	b.pieces(m)
	opts, err := b.putOptions(o)
	if err != nil {
		return err
	}
	b.puts = resized(b.puts, len(b.keys))
	parts := b.parts
	for i, key := range b.keys {
		n := m.pieceCount(i)
		b.puts[i] = store.PutItem{Key: key, Parts: parts[:n:n], Opts: opts(i)}
		parts = parts[n:]
	}
	return nil
}

func putPlanned(ctx context.Context, e *C.mc_error, s *seat, b *batch, keep, skipEmpty bool, out *C.int) C.int {
	if len(b.puts) == 0 {
		return 0
	}
	codes := unsafe.Slice(out, len(b.puts))
	res := results{e: e}
	for i, err := range s.PutBatch(ctx, b.puts) {
		if skipEmpty && err != nil && isEmpty(b.puts[i].Parts) && b.puts[i].Key != "" {
			err = nil
		}
		codes[i] = res.code(kept(err, keep))
	}
	return 0
}

func isEmpty(parts [][]byte) bool {
	for _, p := range parts {
		if len(p) > 0 {
			return false
		}
	}
	return true
}

// putOptions gives the options of each item: the same for all, but for the groups.
func (b *batch) putOptions(o *C.mooncake_put_options_t) (of func(i int) *store.PutOptions, err error) {
	one := putOptions(o)
	if o == nil || o.groups == nil {
		return func(int) *store.PutOptions { return one }, nil
	}
	groups, err := cut(nil, packed{o.groups, o.groups_size, o.group_sizes, C.size_t(len(b.keys))})
	if err != nil {
		return nil, errors.WithMessage(err, "groups")
	}
	b.opts = resized(b.opts, len(b.keys))
	for i, group := range groups {
		b.opts[i] = *one
		b.opts[i].Group = group
	}
	return func(i int) *store.PutOptions { return &b.opts[i] }, nil
}

// getAll reads b.keys and gives each its result.
func getAll(ctx context.Context, e *C.mc_error, s *seat, b *batch, m buffers, flags C.uint, out *C.int64_t) C.int {
	b.pieces(m)
	b.gets = resized(b.gets, len(b.keys))
	parts := b.parts
	for i, key := range b.keys {
		n := m.pieceCount(i)
		b.gets[i] = store.GetItem{Key: key, Dst: parts[:n:n]}
		parts = parts[n:]
	}
	s.GetBatch(ctx, b.gets, readOptions(flags))
	sizes := unsafe.Slice(out, len(b.keys))
	res := results{e: e}
	for i := range b.gets {
		if it := &b.gets[i]; it.Err != nil {
			sizes[i] = C.int64_t(res.code(it.Err))
		} else {
			sizes[i] = C.int64_t(it.N)
		}
	}
	return 0
}

// existAll looks for b.keys and gives each its result.
func existAll(e *C.mc_error, s *seat, b *batch, flags C.uint, out *C.int) C.int {
	codes := unsafe.Slice(out, len(b.keys))
	res := results{e: e}
	if flags&C.MOONCAKE_NO_LEASE != 0 {
		for i, key := range b.keys {
			found, err := s.Probe(key)
			codes[i] = found01(&res, found, err)
		}
		return 0
	}
	b.found = resized(b.found, len(b.keys))
	if err := s.ExistsBatch(b.keys, b.found); err != nil {
		return fail(e, err)
	}
	for i, found := range b.found {
		codes[i] = truth(found)
		if n := len(b.keys[i]); n == 0 || n > store.MaxKeyBytes {
			_, err := s.Exists(b.keys[i])
			codes[i] = found01(&res, false, err)
		}
	}
	return 0
}

func found01(res *results, found bool, err error) C.int {
	if err != nil {
		return res.code(err)
	}
	return truth(found)
}

//export mc_batch_exist
func mc_batch_exist(e *C.mc_error, h C.uintptr_t, keys *C.char, keysSize C.size_t, keySizes *C.uint32_t, count C.size_t,
	flags C.uint, out *C.int) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, b, err := unpacked(h, packed{keys, keysSize, keySizes, count})
	if err != nil {
		return fail(e, err)
	}
	defer b.done()
	return existAll(e, s, b, flags, out)
}

//export mc_batch_put
func mc_batch_put(e *C.mc_error, h C.uintptr_t, keys *C.char, keysSize C.size_t, keySizes *C.uint32_t, count C.size_t,
	addresses *unsafe.Pointer, sizes *C.size_t, counts *C.uint32_t, total C.int64_t, o *C.mooncake_put_options_t, out *C.int) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, b, err := unpacked(h, packed{keys, keysSize, keySizes, count})
	if err != nil {
		return fail(e, err)
	}
	defer b.done()
	return putAll(always, e, s, b, buffers{addresses, sizes, counts, total}, o, false, out)
}

//export mc_batch_get
func mc_batch_get(e *C.mc_error, h C.uintptr_t, keys *C.char, keysSize C.size_t, keySizes *C.uint32_t, count C.size_t,
	addresses *unsafe.Pointer, sizes *C.size_t, counts *C.uint32_t, total C.int64_t, flags C.uint, out *C.int64_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, b, err := unpacked(h, packed{keys, keysSize, keySizes, count})
	if err != nil {
		return fail(e, err)
	}
	defer b.done()
	return getAll(always, e, s, b, buffers{addresses, sizes, counts, total}, flags, out)
}

//export mc_batch_get_ranges
func mc_batch_get_ranges(e *C.mc_error, h C.uintptr_t, keys *C.char, keysSize C.size_t, keySizes *C.uint32_t, count C.size_t,
	addresses *unsafe.Pointer, sizes *C.size_t, counts *C.uint32_t, total C.int64_t, offsets *C.uint64_t, flags C.uint,
	out *C.int64_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, b, err := unpacked(h, packed{keys, keysSize, keySizes, count})
	if err != nil {
		return fail(e, err)
	}
	defer b.done()
	m := buffers{addresses, sizes, counts, total}
	b.fragments(m, offsets)
	if err := s.getRanges(b, readOptions(flags)); err != nil {
		return fail(e, err)
	}
	res := results{e: e}
	codes := unsafe.Slice(out, int(total))
	for i := range b.ranges {
		q := &b.ranges[i]
		code := C.int64_t(res.code(q.Err))
		for j, f := range q.Fragments {
			if codes[j] = code; q.Err == nil {
				codes[j] = C.int64_t(len(f.Dst))
			}
		}
		codes = codes[len(q.Fragments):]
	}
	return 0
}

// getRanges reads b.ranges. When some are refused, for a fragment that is not in the object or whose destination overlaps
// another, all are read again as objects of one fragment each: then only those fragments fail.
func (s *seat) getRanges(b *batch, opts *store.ReadOptions) error {
	if err := s.GetRanges(always, b.ranges, opts); err != nil {
		return err
	}
	refused := func(q store.RangeRead) bool { return len(q.Fragments) > 1 && errors.Is(q.Err, store.ErrInvalidParams) }
	if !slices.ContainsFunc(b.ranges, refused) {
		return nil
	}
	alone := make([]store.RangeRead, 0, len(b.frags))
	for _, q := range b.ranges {
		for j := range q.Fragments {
			alone = append(alone, store.RangeRead{Key: q.Key, Fragments: q.Fragments[j : j+1]})
		}
	}
	b.ranges = alone
	return s.GetRanges(always, b.ranges, opts)
}

// fragments sets b.ranges to what is wanted of each of b.keys.
func (b *batch) fragments(m buffers, offsets *C.uint64_t) {
	b.pieces(m)
	b.frags = resized(b.frags, int(m.total))
	for i, off := range unsafe.Slice((*uint64)(unsafe.Pointer(offsets)), int(m.total)) {
		b.frags[i] = store.Fragment{Off: int64(min(off, 1<<63-1)), Dst: b.parts[i]}
	}
	b.ranges = resized(b.ranges, len(b.keys))
	frags := b.frags
	for i, key := range b.keys {
		n := m.pieceCount(i)
		b.ranges[i] = store.RangeRead{Key: key, Fragments: frags[:n:n]}
		frags = frags[n:]
	}
}

//export mc_batch_get_size
func mc_batch_get_size(e *C.mc_error, h C.uintptr_t, keys *C.char, keysSize C.size_t, keySizes *C.uint32_t, count C.size_t,
	out *C.int64_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, b, err := unpacked(h, packed{keys, keysSize, keySizes, count})
	if err != nil {
		return fail(e, err)
	}
	defer b.done()
	res := results{e: e}
	sizes := unsafe.Slice(out, int(count))
	for i, key := range b.keys {
		n, err := s.leasedSize(key)
		sizes[i] = C.int64_t(n)
		if err != nil {
			sizes[i] = C.int64_t(res.code(err))
		}
	}
	return 0
}

//export mc_batch_remove
func mc_batch_remove(e *C.mc_error, h C.uintptr_t, keys *C.char, keysSize C.size_t, keySizes *C.uint32_t, count C.size_t,
	force C.int, out *C.int) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, b, err := unpacked(h, packed{keys, keysSize, keySizes, count})
	if err != nil {
		return fail(e, err)
	}
	defer b.done()
	res := results{e: e}
	codes := unsafe.Slice(out, int(count))
	for i, err := range s.RemoveBatch(b.keys, force != 0) {
		codes[i] = res.code(err)
	}
	return 0
}
