package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"hash/maphash"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/pkg/errors"
)

var (
	modelSeed = flag.Uint64("seed", 0, "seed of TestModel; 0 picks one")
	modelOps  = flag.Int("ops", 0, "operations of TestModel for each of its stores; 0 is 25,000, a fifth under -race")
)

// An actor does random operations on keys of its own, of which its model knows all, and on keys that it shares with
// the others, of which it knows only that every value is one that was put whole under that key. Values are made from
// an id, so that they need not be kept.
type actor struct {
	s      *Store
	r      *rand.Rand
	name   string
	disk   bool
	model  model
	views  []heldView
	files  []heldFile
	nextID uint64
	buf    []byte
}

// buffer is for one read.
func (a *actor) buffer() []byte {
	if a.buf == nil {
		a.buf = make([]byte, 2<<20)
	}
	return a.buf
}

type heldView struct {
	v    *View
	want []byte
}

type heldFile struct {
	f    *File
	want []byte
}

// model is what an actor knows of its keys. An object may be evicted at any time, unless it is pinned or durable.
type model map[string]*object

type object struct {
	src           string // the key that it was put under: a link has another
	id            uint64
	size          int
	order         uint64 // of puts, for groups
	group         string
	hard, durable bool
}

// gone takes note that key was not found, which must have been allowed. The group that it was in was evicted whole:
// members that were put before it are gone as well.
func (m model) gone(a *actor, key string) {
	if o := m[key]; o != nil {
		delete(m, key)
		m.evicted(a, key, o)
	}
}

// evicted is gone for what the model has forgotten already.
func (m model) evicted(a *actor, key string, o *object) {
	a.check(!o.hard && !o.durable, "%s is gone: %+v", key, *o)
	for other, x := range m {
		if o.group == "" || x.group != o.group || x.order > o.order {
			continue
		}
		_, err := a.s.Stat(other)
		a.check(errors.Is(err, ErrNotFound), "%s was evicted, %s of its group %s was not: %v", key, other, o.group, err)
		a.check(!x.hard && !x.durable, "%s is gone with its group: %+v", other, *x)
		delete(m, other)
	}
}

// found takes note of what a look-up said and reports whether the object is there.
func (m model) found(a *actor, key string, err error) bool {
	if errors.Is(err, ErrNotFound) {
		m.gone(a, key)
		return false
	}
	a.ok(err, "find %s", key)
	a.check(m[key] != nil, "%s is there, but never was put or was removed", key)
	return true
}

// put takes note of a put's result: not there before, unless it replaced.
func (m model) put(a *actor, key string, o *object, replace bool, err error) {
	switch old := m[key]; {
	case errors.Is(err, ErrNoSpace):
	case errors.Is(err, ErrExists) && !replace:
		a.check(old != nil, "put %s: exists, but never was put or was removed", key)
	default:
		a.ok(err, "put %s, %d bytes", key, o.size)
		if old != nil && !replace {
			m.gone(a, key)
		}
		if old != nil && replace {
			// What it inherited from the old object, if that was still there. Pins only ever keep it.
			info, err := a.s.Stat(key)
			if errors.Is(err, ErrNotFound) {
				a.check(!o.hard && !o.durable, "%s is gone right after its put", key)
				delete(m, key)
				return
			}
			a.ok(err, "stat %s", key)
			a.check(!old.hard || info.HardPin, "upsert of %s lost its hard pin", key)
			o.hard, o.group = info.HardPin, info.Group
		}
		m[key] = o
	}
}

type modelFailure string

func (a *actor) check(ok bool, format string, args ...any) {
	if !ok {
		panic(modelFailure(a.name + ": " + fmt.Sprintf(format, args...)))
	}
}

func (a *actor) ok(err error, format string, args ...any) {
	a.check(err == nil, "%s: %v", fmt.Sprintf(format, args...), err)
}

var valueSeed = maphash.MakeSeed()

// value is the bytes of an id under a key. From 16 bytes on the id and the size are in it.
func value(key string, id uint64, size int) []byte {
	p := make([]byte, size, size+8)
	x := maphash.String(valueSeed, key) ^ id*0x9e3779b97f4a7c15
	for i := 0; i < size; i += 8 {
		x += 0x9e3779b97f4a7c15
		z := (x ^ x>>30) * 0xbf58476d1ce4e5b9
		binary.LittleEndian.PutUint64(p[i:i+8:i+8], z^z>>27)
	}
	if size >= 16 {
		binary.LittleEndian.PutUint64(p, id)
		binary.LittleEndian.PutUint64(p[8:], uint64(size))
	}
	return p
}

// whole checks that p is some value that was put under a shared key.
func (a *actor) whole(key string, p []byte) {
	a.check(len(p) >= 16, "shared %s has %d bytes", key, len(p))
	id, size := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
	a.check(size == uint64(len(p)), "shared %s has %d bytes, it was put with %d", key, len(p), size)
	a.check(bytes.Equal(p, value(key, id, len(p))), "shared %s of %d bytes, id %x: wrong bytes", key, len(p), id)
}

func (a *actor) size() int {
	switch n := a.r.IntN(200); {
	case n == 0:
		return 1<<20 + a.r.IntN(1<<20-16)
	case n < 6:
		return 64<<10 + a.r.IntN(256<<10)
	case n < 20:
		return 64<<10 + a.r.IntN(3) - 1
	case n < 100:
		return 1 + a.r.IntN(12<<10)
	}
	return 1 + a.r.IntN(2<<10)
}

func (a *actor) key() string { return fmt.Sprintf("%s/%d", a.name, a.r.IntN(500)) }

// step does one operation.
func (a *actor) step() {
	if a.r.IntN(8) == 0 {
		a.shared()
		return
	}
	total := 0
	for _, o := range modelActions {
		total += o.weight
	}
	n := a.r.IntN(total)
	for _, o := range modelActions {
		if n -= o.weight; n < 0 {
			o.do(a, a.key())
			return
		}
	}
}

var modelActions = []struct {
	weight int
	do     func(a *actor, key string)
}{
	{40, (*actor).putAny}, {20, (*actor).getAny}, {6, (*actor).getRanges}, {8, (*actor).view}, {2, (*actor).file},
	{4, (*actor).write}, {6, (*actor).probe}, {6, (*actor).remove}, {3, (*actor).link}, {3, (*actor).pin},
	{2, (*actor).groups}, {3, (*actor).batch}, {1, (*actor).scan}, {1, (*actor).removeRegex}, {6, (*actor).letGo},
}

func (a *actor) options(o *object) *PutOptions {
	opts := &PutOptions{Type: ObjectType(a.r.IntN(int(Types)))}
	if a.r.IntN(20) == 0 {
		opts.SoftPin = time.Minute
	}
	if a.r.IntN(100) == 0 && o.size < 64<<10 {
		opts.HardPin = true
	}
	if a.disk && a.r.IntN(60) == 0 && o.size < 1<<20 {
		opts.Durable = true
	}
	if a.r.IntN(5) == 0 {
		opts.Group = fmt.Sprintf("%s-group-%d", a.name, a.r.IntN(4))
	}
	opts.OwnFile = a.r.IntN(4) == 0
	o.hard, o.durable, o.group = opts.HardPin, opts.Durable, opts.Group
	return opts
}

// fresh is an object that is about to be put, with its options and bytes.
func (a *actor) fresh(key string) (*object, *PutOptions, []byte) {
	a.nextID++
	o := &object{src: key, id: a.nextID, size: a.size(), order: a.nextID}
	return o, a.options(o), value(key, o.id, o.size)
}

func (a *actor) putAny(key string) {
	o, opts, p := a.fresh(key)
	ctx := context.Background()
	replace := a.r.IntN(4) == 0
	if old := a.model[key]; replace && old != nil && old.group != "" {
		opts.Group = "" // a group is for life; it stays
	}
	opts.Replace = replace
	var err error
	switch a.r.IntN(5) {
	case 0:
		err = a.s.Put(ctx, key, p, opts)
	case 1:
		cut := a.r.IntN(len(p) + 1)
		err = a.s.PutParts(ctx, key, [][]byte{p[:cut], nil, p[cut:]}, opts)
	case 2:
		err = a.s.PutFrom(ctx, key, struct{ io.Reader }{bytes.NewReader(p)}, int64(len(p)), opts)
	case 3:
		err = a.s.PutFrom(ctx, key, bytes.NewReader(p), int64(len(p)), opts)
	default:
		if replace {
			opts.Replace = false
			err = a.s.Upsert(ctx, key, p, opts)
			break
		}
		err = a.s.PutBatch(ctx, []PutItem{{key, [][]byte{p}, opts}})[0]
	}
	a.model.put(a, key, o, replace, err)
}

// write puts with a Writer: in order, out of order, and half of them not to the end.
func (a *actor) write(key string) {
	o, opts, p := a.fresh(key)
	ctx := context.Background()
	w, err := a.s.Create(ctx, key, int64(len(p)), opts)
	if err != nil {
		a.model.put(a, key, o, false, err)
		return
	}
	a.check(!errors.Is(a.s.Put(ctx, key, p, nil), nil), "put %s beside an open writer", key)
	inOrder := opts.Durable || a.r.IntN(2) == 0
	for _, i := range a.r.Perm(4) {
		from, to := len(p)*i/4, len(p)*(i+1)/4
		if inOrder {
			i = 0
			from, to = 0, len(p)
		}
		if _, err := w.WriteAt(p[from:to], int64(from)); err != nil {
			a.check(false, "write %s at %d: %v", key, from, err)
		}
		if inOrder {
			break
		}
	}
	if a.r.IntN(2) == 0 {
		w.Abort()
		_, err := a.s.Stat(key)
		if !errors.Is(err, ErrNotFound) {
			a.check(a.model[key] != nil, "%s is there after Abort: %v", key, err)
			a.model.gone(a, key)
		}
		a.check(errors.Is(w.Commit(ctx), ErrNotWriter), "commit %s after abort", key)
		return
	}
	err = w.Commit(ctx)
	a.check(errors.Is(w.Commit(ctx), ErrNotWriter), "second commit of %s", key)
	a.model.put(a, key, o, false, err)
}

func (a *actor) readOptions() *ReadOptions {
	if n := a.r.IntN(4); n < 3 {
		return &ReadOptions{Verify: Verify(n)}
	}
	return nil
}

func (a *actor) want(key string) []byte {
	o := a.model[key]
	return value(o.src, o.id, o.size)
}

func (a *actor) getAny(key string) {
	ctx := context.Background()
	var got []byte
	var err error
	switch a.r.IntN(3) {
	case 0:
		got, err = a.s.Get(ctx, key, a.readOptions())
	case 1:
		buf := a.buffer()[a.r.IntN(8):]
		var n int
		n, err = a.s.GetInto(ctx, key, buf, a.readOptions())
		got = buf[:n]
	default:
		buf := a.buffer()
		items := []GetItem{{Key: key, Dst: [][]byte{buf[:5000], nil, buf[5000:]}}}
		a.s.GetBatch(ctx, items, a.readOptions())
		got, err = buf[:items[0].N], items[0].Err
	}
	if a.model.found(a, key, err) {
		a.check(bytes.Equal(got, a.want(key)), "get %s: wrong bytes, %d for %d", key, len(got), a.model[key].size)
	}
}

func (a *actor) getRanges(key string) {
	o := a.model[key]
	if o == nil {
		return
	}
	read := RangeRead{Key: key}
	for range 1 + a.r.IntN(4) {
		off := a.r.IntN(o.size)
		read.Fragments = append(read.Fragments, Fragment{int64(off), make([]byte, a.r.IntN(o.size-off+1))})
	}
	reads := []RangeRead{read, {Key: a.name + "/absent"}}
	a.ok(a.s.GetRanges(context.Background(), reads, a.readOptions()), "get ranges of %s", key)
	a.check(errors.Is(reads[1].Err, ErrNotFound), "ranges of an absent key: %v", reads[1].Err)
	if !a.model.found(a, key, reads[0].Err) {
		return
	}
	want := a.want(key)
	for _, f := range read.Fragments {
		a.check(bytes.Equal(f.Dst, want[f.Off:f.Off+int64(len(f.Dst))]), "ranges of %s: wrong bytes at %d", key, f.Off)
	}
}

func (a *actor) view(key string) {
	v, err := a.s.View(context.Background(), key, a.readOptions())
	if !a.model.found(a, key, err) {
		return
	}
	h := heldView{v, a.want(key)}
	a.checkView(h)
	if a.r.IntN(3) == 0 && len(a.views) < 4 {
		a.views = append(a.views, h)
		return
	}
	a.ok(v.Close(), "close view of %s", key)
}

func (a *actor) checkView(h heldView) {
	a.check(bytes.Equal(bytes.Join(h.v.Segments(), nil), h.want), "view: wrong bytes, %d for %d", h.v.Size(), len(h.want))
}

func (a *actor) file(key string) {
	f, err := a.s.File(context.Background(), key, a.readOptions())
	if errors.Is(err, ErrNoSpace) || errors.Is(err, ErrNotSupported) && a.model[key] != nil && a.model[key].size < 64<<10 {
		return
	}
	if !a.model.found(a, key, err) {
		return
	}
	h := heldFile{f, a.want(key)}
	a.checkFile(h)
	if a.r.IntN(2) == 0 && len(a.files) < 2 {
		a.files = append(a.files, h)
		return
	}
	a.ok(f.Close(), "close file of %s", key)
}

func (a *actor) checkFile(h heldFile) {
	got, err := os.ReadFile(h.f.Path())
	a.ok(err, "read %s", h.f.Path())
	a.check(bytes.Equal(got, h.want), "file %s: wrong bytes, %d for %d", h.f.Path(), len(got), len(h.want))
}

// letGo closes what was kept open, which must still be what it was whatever happened to its key.
func (a *actor) letGo(string) {
	for _, h := range a.views {
		a.checkView(h)
		a.ok(h.v.Close(), "close view")
	}
	for _, h := range a.files {
		a.checkFile(h)
		a.ok(h.f.Close(), "close file")
	}
	a.views, a.files = a.views[:0], a.files[:0]
}

func (a *actor) probe(key string) {
	info, err := a.s.Stat(key)
	if a.model.found(a, key, err) {
		o := a.model[key]
		a.check(info.Size == int64(o.size) && info.HardPin == o.hard && info.Group == o.group,
			"stat %s: %+v, model %+v", key, info, *o)
	}
	found := make([]bool, 2)
	a.ok(a.s.ExistsBatch([]string{key, a.name + "/absent"}, found), "exists %s", key)
	a.check(!found[1], "an absent key exists")
	if !found[0] {
		a.model.gone(a, key)
		return
	}
	a.check(a.model[key] != nil, "%s exists, but never was put or was removed", key)
}
