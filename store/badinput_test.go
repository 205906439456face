package store

import (
	"bytes"
	"context"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBadInput calls everything with what it must refuse. The error must be the named one and say the key and the limit.
func TestBadInput(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, Options{MemoryBytes: 32 << 20})
	require.NoError(t, s.Put(ctx, "there", random(1000), nil))
	long := strings.Repeat("k", MaxKeyBytes+1)
	one := []byte{1}
	buf := make([]byte, 4000)
	w, err := s.Create(ctx, "writer", 10, nil)
	require.NoError(t, err)
	defer w.Abort()
	ranges := func(fragments ...Fragment) error {
		reads := []RangeRead{{Key: "there", Fragments: []Fragment{{0, buf[3000:]}}}, {Key: "there", Fragments: fragments}}
		if err := s.GetRanges(ctx, reads, nil); err != nil {
			return err
		}
		require.NoError(t, reads[0].Err, "the rest of the batch")
		return reads[1].Err
	}
	get := func(key string) error { _, err := s.Get(ctx, key, nil); return err }
	for _, test := range []struct {
		name string
		err  error
		want error
		says []string // in its text
	}{
		{"put empty key", s.Put(ctx, "", one, nil), ErrInvalidKey, []string{"empty"}},
		{"put long key", s.Put(ctx, long, one, nil), ErrInvalidKey, []string{"kkkk", "4097", "4096"}},
		{"create long key", second(s.Create(ctx, long, 1, nil)), ErrInvalidKey, []string{"4096"}},
		{"link long key", s.Link(ctx, long, "there", nil), ErrInvalidKey, []string{"4096"}},
		{"link to long key", s.Link(ctx, "l", long, nil), ErrInvalidKey, []string{"4096"}},
		{"link to empty key", s.Link(ctx, "l", "", nil), ErrInvalidKey, []string{"empty"}},
		{"get empty key", get(""), ErrInvalidKey, []string{"empty"}},
		{"get long key", get(long), ErrInvalidKey, []string{"4097", "4096"}},
		{"view long key", second(s.View(ctx, long, nil)), ErrInvalidKey, []string{"4096"}},
		{"file empty key", second(s.File(ctx, "", nil)), ErrInvalidKey, []string{"empty"}},
		{"stat empty key", second(s.Stat("")), ErrInvalidKey, []string{"empty"}},
		{"exists long key", second(s.Exists(long)), ErrInvalidKey, []string{"4096"}},
		{"probe empty key", second(s.Probe("")), ErrInvalidKey, []string{"empty"}},
		{"remove empty key", s.Remove("", false), ErrInvalidKey, []string{"empty"}},
		{"remove long key", s.Remove(long, true), ErrInvalidKey, []string{"4096"}},
		{"pin long key", s.SetPins(long, PinChange{}), ErrInvalidKey, []string{"4096"}},
		{"put nothing", s.Put(ctx, "k", nil, nil), ErrInvalidParams, []string{`"k"`, "size 0"}},
		{"put no parts", s.PutParts(ctx, "k", nil, nil), ErrInvalidParams, []string{`"k"`, "size 0"}},
		{"upsert nothing", s.Upsert(ctx, "k", nil, nil), ErrInvalidParams, []string{`"k"`, "size 0"}},
		{"put from, size 0", s.PutFrom(ctx, "k", bytes.NewReader(nil), 0, nil), ErrInvalidParams, []string{`"k"`, "size 0"}},
		{"put from, negative", s.PutFrom(ctx, "k", bytes.NewReader(one), -1, nil), ErrInvalidParams, []string{`"k"`, "-1"}},
		{"create negative", second(s.Create(ctx, "k", math.MinInt64, nil)), ErrInvalidParams, []string{`"k"`}},
		{"create over the store", second(s.Create(ctx, "k", 32<<20+1, nil)), ErrTooLarge, []string{`"k"`, "33554433"}},
		{"create as large as the store", second(s.Create(ctx, "k", 32<<20, nil)), ErrTooLarge, []string{`"k"`, "33554432"}},
		{"create own file as large as the store", second(s.Create(ctx, "k", 32<<20, &PutOptions{OwnFile: true})), ErrTooLarge, []string{`"k"`, "33554432"}},
		{"create huge", second(s.Create(ctx, "k", math.MaxInt64, nil)), ErrTooLarge, []string{`"k"`, "9223372036854775807"}},
		{"put short reader", s.PutFrom(ctx, "k", strings.NewReader("abc"), 4, nil), io.ErrUnexpectedEOF, []string{`"k"`}},
		{"put unknown type", s.Put(ctx, "k", one, &PutOptions{Type: Types}), ErrInvalidParams, []string{`"k"`, "10", "9"}},
		{"soft pin too long", s.Put(ctx, "k", one, &PutOptions{SoftPin: MaxSoftPin + 1}), ErrInvalidParams, []string{`"k"`, "24h0m0s"}},
		{"soft pin negative", s.Put(ctx, "k", one, &PutOptions{SoftPin: -1}), ErrInvalidParams, []string{`"k"`, "-1ns"}},
		{"pin too long", s.SetPins("there", PinChange{SoftPin: new(MaxSoftPin + 1)}), ErrInvalidParams, []string{`"there"`, "24h0m0s"}},
		{"negative replicas", s.Put(ctx, "k", one, &PutOptions{Replicas: -1}), ErrInvalidParams, []string{`"k"`, "-1"}},
		{"long group", s.Put(ctx, "k", one, &PutOptions{Group: long}), ErrInvalidParams, []string{`"k"`, "4097", "4096"}},
		{"durable without Dir", s.Put(ctx, "k", one, &PutOptions{Durable: true}), ErrInvalidParams, []string{`"k"`, "Options.Dir"}},
		{"durable link without Dir", s.Link(ctx, "k", "there", &PutOptions{Durable: true}), ErrInvalidParams, []string{`"k"`, "Options.Dir"}},
		{"put again", s.Put(ctx, "there", one, nil), ErrExists, nil},
		{"link on itself", s.Link(ctx, "there", "there", nil), ErrExists, nil},
		{"link to absent", s.Link(ctx, "k", "absent", nil), ErrNotFound, []string{`"k"`, `"absent"`}},
		{"sync without Dir", s.Sync(ctx), ErrUnavailable, []string{"Options.Dir"}},
		{"buffer too small", second(s.GetInto(ctx, "there", buf[:999], nil)), ErrBufferTooSmall, []string{`"there"`, "999", "1000"}},
		{"file of a small object", second(s.File(ctx, "there", nil)), ErrNotSupported, []string{`"there"`, "1000", "1048576"}},
		{"range negative", ranges(Fragment{-1, buf[:1]}), ErrInvalidParams, []string{`"there"`, "-1", "1000"}},
		{"range past the end", ranges(Fragment{999, buf[:2]}), ErrInvalidParams, []string{`"there"`, "999", "1000"}},
		{"range behind the end", ranges(Fragment{1001, buf[:0]}), ErrInvalidParams, []string{`"there"`, "1001", "1000"}},
		{"range overflows", ranges(Fragment{math.MaxInt64, buf[:2]}), ErrInvalidParams, []string{`"there"`, "9223372036854775807", "1000"}},
		{"ranges overlap", ranges(Fragment{0, buf[:10]}, Fragment{20, buf[9:12]}), ErrInvalidParams, []string{`"there"`, "overlap"}},
		{"ranges the same", ranges(Fragment{0, buf[:10]}, Fragment{20, buf[:10]}), ErrInvalidParams, []string{`"there"`, "overlap"}},
		{"write negative", second(w.WriteAt(one, -1)), ErrInvalidParams, []string{`"writer"`, "-1", "10"}},
		{"write past the end", second(w.WriteAt(buf[:2], 9)), ErrInvalidParams, []string{`"writer"`, "9", "10"}},
		{"write overflows", second(w.WriteAt(buf[:2], math.MaxInt64)), ErrInvalidParams, []string{`"writer"`, "10"}},
		{"bad pattern", second(s.RemoveRegex(ctx, "a(b", false)), ErrInvalidParams, []string{"a(b"}},
		{"bad tenant", second(s.Tenant("a\x00b")), ErrInvalidParams, []string{`a\x00b`}},
		{"reserved tenant", second(s.Tenant("_x")), ErrInvalidParams, []string{`"_x"`}},
		{"long tenant", second(s.Tenant(strings.Repeat("t", 256))), ErrInvalidParams, []string{"255"}},
		{"absent group", second(s.Group("g")), ErrGroupNotFound, nil},
		{"remove absent group", second(s.RemoveGroup("g", true)), ErrGroupNotFound, nil},
		{"pin absent group", s.SetGroupPins("g", PinChange{}), ErrGroupNotFound, nil},
		{"exists, counts differ", s.ExistsBatch([]string{"a", "b"}, make([]bool, 1)), ErrInvalidParams, []string{"2 keys", "1 results"}},
		{"exists, too many", s.ExistsBatch(make([]string, MaxBatch+1), make([]bool, MaxBatch+1)), ErrInvalidParams, []string{"1048577", "1048576"}},
		{"put, too many", s.PutBatch(ctx, make([]PutItem, MaxBatch+1))[MaxBatch], ErrInvalidParams, []string{"1048577", "1048576"}},
		{"remove, too many", s.RemoveBatch(make([]string, MaxBatch+1), true)[0], ErrInvalidParams, []string{"1048577", "1048576"}},
		{"ranges, too many", s.GetRanges(ctx, make([]RangeRead, MaxBatch+1), nil), ErrInvalidParams, []string{"1048577", "1048576"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.ErrorIs(t, test.err, test.want)
			require.Equal(t, Code(test.want), Code(test.err))
			for _, text := range test.says {
				require.ErrorContains(t, test.err, text)
			}
			require.Less(t, len(test.err.Error()), 400, "an error is no dump of its arguments")
		})
	}
	u, err := s.Usage()
	require.NoError(t, err)
	require.EqualValues(t, 1, u.Objects[Unknown], "refused puts left something")
	require.EqualValues(t, 10, u.Reserved)
	got, err := s.Get(ctx, "there", nil)
	require.NoError(t, err)
	require.True(t, bytes.Equal(random(1000), got))
}

func second[T any](_ T, err error) error { return err }

func TestBadItemsLeaveTheRestOfABatch(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, Options{MemoryBytes: 32 << 20})
	good := random(100)
	errs := s.PutBatch(ctx, []PutItem{
		{Key: "a", Parts: [][]byte{good}},
		{Key: "", Parts: [][]byte{good}},
		{Key: "b", Parts: nil},
		{Key: "c", Parts: [][]byte{good}, Opts: &PutOptions{Type: 77}},
		{Key: "a", Parts: [][]byte{good}},
		{Key: "d", Parts: [][]byte{good[:50], good[50:]}},
	})
	for i, want := range []error{nil, ErrInvalidKey, ErrInvalidParams, ErrInvalidParams, ErrExists, nil} {
		require.ErrorIs(t, errs[i], want, i)
	}
	gets := []GetItem{{Key: "a", Dst: [][]byte{make([]byte, 100)}}, {Key: "", Dst: nil}, {Key: "d", Dst: [][]byte{make([]byte, 99)}},
		{Key: "d", Dst: [][]byte{make([]byte, 1), make([]byte, 200)}}}
	s.GetBatch(ctx, gets, nil)
	for i, want := range []error{nil, ErrInvalidKey, ErrBufferTooSmall, nil} {
		require.ErrorIs(t, gets[i].Err, want, i)
	}
	require.EqualValues(t, 100, gets[3].N)
	require.Equal(t, good, append(gets[3].Dst[0], gets[3].Dst[1][:99]...))
	found := make([]bool, 4)
	require.NoError(t, s.ExistsBatch([]string{"a", "", strings.Repeat("x", 70000), "d"}, found))
	require.Equal(t, []bool{true, false, false, true}, found)
	errs = s.RemoveBatch([]string{"a", "", "d"}, true)
	for i, want := range []error{nil, ErrInvalidKey, nil} {
		require.ErrorIs(t, errs[i], want, i)
	}
}

func TestValidateReportsEverything(t *testing.T) {
	_, err := Open(context.Background(), Options{MemoryBytes: 1, SSDBytes: -1, LeaseTTL: -1, HighWatermark: 2, EvictionRatio: -1,
		FileBytes: 5000, Offload: 9, PromoteAfter: 16, PutTimeout: time.Hour, ShmDir: "relative"})
	require.ErrorIs(t, err, ErrInvalidParams)
	require.Equal(t, -600, Code(err))
	for _, field := range []string{"MemoryBytes", "SSDBytes", "LeaseTTL", "HighWatermark", "EvictionRatio", "FileBytes", "Offload",
		"PromoteAfter", "PutTimeout", "ShmDir"} {
		require.ErrorContains(t, err, "Options."+field)
	}
	require.ErrorIs(t, Options{HighWatermark: math.NaN()}.Validate(), ErrInvalidParams)
	require.NoError(t, Options{}.Validate())
}

// TestCodes is the contract with callers that hard-code upstream's numbers.
func TestCodes(t *testing.T) {
	for err, code := range map[error]int{
		nil: 0, io.EOF: -1, ErrInvalidKey: -400, ErrInvalidParams: -600, ErrTooLarge: -200, ErrBufferTooSmall: -600,
		ErrNoSpace: -200, ErrExists: -705, ErrNotWriter: -601, ErrNotFound: -704, ErrNotReady: -703, ErrHasLease: -706,
		ErrBusy: -714, ErrClosed: -1010, ErrMemoryLimit: -200, ErrNoReplica: -702,
	} {
		require.Equal(t, code, Code(err), "%v", err)
	}
	seen := map[string]bool{}
	for k := range Types {
		seen[ObjectType(k).String()] = true
	}
	require.Len(t, seen, int(Types))
	require.Equal(t, "INVALID", ObjectType(Types).String())
	require.EqualValues(t, 3, Weight)
	require.EqualValues(t, 8, Metadata)
}

func TestDoubleEndings(t *testing.T) {
	ctx := context.Background()
	s, err := Open(ctx, testOptions(t, Options{Dir: t.TempDir()}))
	require.NoError(t, err)
	for _, opts := range []PutOptions{{}, {Durable: true}, {Type: Weight}, {Type: Weight, Durable: true}} {
		w, err := s.Create(ctx, "k", 1<<20, &opts)
		require.NoError(t, err)
		_, err = w.Write(random(1 << 20))
		require.NoError(t, err)
		require.NoError(t, w.Commit(ctx))
		require.ErrorIs(t, w.Commit(ctx), ErrNotWriter)
		w.Abort()
		w.Abort()
		_, err = w.Write([]byte{1})
		require.ErrorIs(t, err, ErrNotWriter)
		v, err := s.View(ctx, "k", nil)
		require.NoError(t, err)
		require.NoError(t, v.Close())
		require.ErrorIs(t, v.Close(), ErrClosed)
		f, err := s.File(ctx, "k", nil)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.ErrorIs(t, f.Close(), ErrClosed)
		info, err := s.Stat("k")
		require.NoError(t, err)
		require.Zero(t, info.Readers)
		require.NoError(t, s.Remove("k", true))
	}
	w, err := s.Create(ctx, "short", 10, nil)
	require.NoError(t, err)
	_, err = w.WriteAt([]byte("abc"), 4)
	require.NoError(t, err)
	err = w.Commit(ctx)
	require.ErrorIs(t, err, ErrIncomplete)
	require.ErrorContains(t, err, `"short"`)
	require.NoError(t, s.Put(ctx, "short", []byte("abc"), nil), "a failed commit ends the put")
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
}

func TestUseAfterClose(t *testing.T) {
	ctx := context.Background()
	s, err := Open(ctx, testOptions(t, Options{Dir: t.TempDir()}))
	require.NoError(t, err)
	require.NoError(t, s.Put(ctx, "k", random(1000), nil))
	w, err := s.Create(ctx, "w", 1000, nil)
	require.NoError(t, err)
	other, err := s.Tenant("other")
	require.NoError(t, err)
	require.NoError(t, s.Close())
	one := []byte{1}
	reads := []RangeRead{{Key: "k", Fragments: []Fragment{{0, make([]byte, 1)}}}}
	require.NoError(t, s.GetRanges(ctx, reads, nil))
	items := []GetItem{{Key: "k", Dst: [][]byte{make([]byte, 1000)}}}
	s.GetBatch(ctx, items, nil)
	_, stats := s.StatBatch([]string{"k"})
	var scanned error
	for _, err := range s.Objects(ctx, "") {
		scanned = err
	}
	for i, err := range []error{
		s.Put(ctx, "a", one, nil), s.PutParts(ctx, "a", [][]byte{one}, nil), s.Upsert(ctx, "a", one, nil),
		s.PutFrom(ctx, "a", bytes.NewReader(one), 1, nil), s.PutFrom(ctx, "a", io.LimitReader(bytes.NewReader(one), 1), 1, nil),
		second(s.Create(ctx, "a", 1, nil)), second(w.Write(one)), second(w.WriteAt(one, 0)), second(w.ReadFrom(bytes.NewReader(one))),
		w.Commit(ctx), s.PutBatch(ctx, []PutItem{{Key: "a", Parts: [][]byte{one}}})[0],
		second(s.Get(ctx, "k", nil)), second(s.GetInto(ctx, "k", make([]byte, 1000), nil)), reads[0].Err, items[0].Err,
		second(s.View(ctx, "k", nil)), second(s.File(ctx, "k", nil)), second(s.Stat("k")), stats[0], second(s.Exists("k")),
		second(s.Probe("k")), s.ExistsBatch([]string{"k"}, make([]bool, 1)), s.Remove("k", true), s.RemoveBatch([]string{"k"}, true)[0],
		second(s.RemoveRegex(ctx, ".", true)), second(s.RemoveAll(ctx, true)), s.Link(ctx, "l", "k", nil), s.SetPins("k", PinChange{}),
		s.SetGroupPins("g", PinChange{}), second(s.Group("g")), second(s.RemoveGroup("g", true)), second(s.Usage()), s.Sync(ctx),
		s.WaitReady(ctx), scanned, second(other.Get(ctx, "k", nil)),
	} {
		require.ErrorIs(t, err, ErrClosed, "call %d", i)
		require.Equal(t, -1010, Code(err))
	}
	w.Abort()
	require.Empty(t, s.Explain("k"))
	s.Counters()
	events, cancel := s.Events(1)
	_, open := <-events
	require.False(t, open)
	cancel()
	require.NoError(t, other.Close())
}

// Reads whose destinations overlap are refused; the others of the call are done.
func TestOverlapLeavesTheRest(t *testing.T) {
	ctx, s := context.Background(), openTest(t, Options{})
	require.NoError(t, s.Put(ctx, "k", random(1000), nil))
	buf := make([]byte, 500)
	at := func(from, to int) []Fragment { return []Fragment{{0, buf[from:to]}} }
	reads := []RangeRead{
		{Key: "k", Fragments: at(0, 100), Err: ErrBusy},
		{Key: "k", Fragments: at(100, 200)},
		{Key: "k", Fragments: at(120, 130)},
		{Key: "k", Fragments: at(150, 160)},
		{Key: "k", Fragments: at(200, 300)},
		{Key: "k", Fragments: append(at(300, 400), at(300, 400)...)},
		{Key: "absent", Fragments: at(400, 410)},
	}
	require.NoError(t, s.GetRanges(ctx, reads, nil))
	for i, want := range []error{nil, ErrInvalidParams, ErrInvalidParams, ErrInvalidParams, nil, ErrInvalidParams, ErrNotFound} {
		require.ErrorIs(t, reads[i].Err, want, "read %d", i)
	}
	require.Equal(t, random(1000)[:100], buf[:100])
	require.Equal(t, random(1000)[:100], buf[200:300])
	require.Equal(t, make([]byte, 100), buf[100:200], "untouched")
}
