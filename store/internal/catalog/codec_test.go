package catalog

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func testRecord() Record {
	return Record{
		Tenant: "tenant", Key: "weight:m:r:file:f", Gen: 300, Size: 4 << 30, Type: 3, Flags: FlagHardPin | FlagOwn,
		SoftUntil: -1, Group: "group", Target: "target", Digest: 0x1122334455667788, Loc: Loc{1, 2, 3},
		OwnMtime: math.MaxInt64,
	}
}

func encode(r *Record) (key, value []byte) {
	key = AppendKey(nil, r.Tenant, r.Key, r.Gen)
	return key, r.appendValue(nil, key)
}

// seal gives body the checksum it should have under key.
func seal(key, body []byte) []byte {
	return binary.LittleEndian.AppendUint32(bytes.Clone(body), checksum(key, body))
}

func TestDecodeFindsEveryFlippedBit(t *testing.T) {
	want := testRecord()
	key, value := encode(&want)
	var got Record
	require.NoError(t, got.Decode(key, value))
	require.Equal(t, want, got)
	for _, p := range [][]byte{key, value} {
		for bit := range 8 * len(p) {
			p[bit/8] ^= 1 << (bit % 8)
			require.ErrorIs(t, got.Decode(key, value), ErrCorrupt, "bit %d of %d bytes", bit, len(p))
			p[bit/8] ^= 1 << (bit % 8)
		}
	}
}

func TestDecodeRefusesEveryTruncation(t *testing.T) {
	r := testRecord()
	key, value := encode(&r)
	body := value[:len(value)-checksumBytes]
	var got Record
	for n := range value {
		require.ErrorIs(t, got.Decode(key, value[:n]), ErrCorrupt, "value cut to %d", n)
	}
	for n := range body {
		require.ErrorIs(t, got.Decode(key, seal(key, body[:n])), ErrCorrupt, "body cut to %d with a right checksum", n)
	}
	require.ErrorIs(t, got.Decode(key, seal(key, append(bytes.Clone(body), 0))), ErrCorrupt, "a byte too many")
}

func TestDecodeVersions(t *testing.T) {
	r := testRecord()
	key, value := encode(&r)
	body := value[:len(value)-checksumBytes]
	body[0] = recordVersion + 1
	require.ErrorIs(t, r.Decode(key, seal(key, body)), ErrNewerFormat)
	body[0] = 0
	require.ErrorIs(t, r.Decode(key, seal(key, body)), ErrCorrupt)
	require.ErrorIs(t, r.Decode(key, seal(key, nil)), ErrCorrupt)
}

func TestDecodeHostile(t *testing.T) {
	fixed := append([]byte{recordVersion}, make([]byte, recordFixed-1)...)
	var r Record
	long := strings.Repeat("k", MaxKeyBytes)
	okKey := AppendKey(nil, "", "k", 1)
	good := append(bytes.Clone(fixed), 0, 0, 0, 0, 0)
	require.NoError(t, r.Decode(okKey, seal(okKey, good)))
	for name, key := range map[string][]byte{
		"empty":        {},
		"prefix":       {prefixObject},
		"meta":         AppendMetaKey(nil, "m"),
		"tenant short": {prefixObject, 2, 'a'},
		"gen missing":  {prefixObject, 1, 't'},
		"gen short":    okKey[:2+genBytes-1],
		"tenant eats":  {prefixObject, 3, 't', 0, 0, 0, 0, 0, 0, 0, 1}, // one byte of the generation
		"key long":     AppendKey(nil, "t", long+"k", 0),
		"far too long": AppendKey(nil, "t", strings.Repeat(long, 9), 0),
	} {
		require.ErrorIs(t, r.Decode(key, seal(key, good)), ErrCorrupt, name)
	}
	for name, tail := range map[string][]byte{
		"long zero":        {0x80, 0, 0, 0, 0, 0},
		"varint overflow":  {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0},
		"varint unended":   {0, 0, 0x80},
		"negative size":    append(binary.AppendUvarint(nil, 1<<63), 0, 0, 0, 0),
		"group long":       append(binary.AppendUvarint([]byte{0, 0, 0}, MaxGroupBytes+1), make([]byte, MaxGroupBytes+2)...),
		"group unended":    {0, 0, 0, 0x80},
		"group is missing": {0, 0, 0, 5},
		"group enormous":   binary.AppendUvarint([]byte{0, 0, 0}, math.MaxUint64),
		"no target":        {0, 0, 0, 1, 'g'},
		"target long":      append(binary.AppendUvarint([]byte{0, 0, 0, 0}, MaxKeyBytes+1), make([]byte, MaxKeyBytes+1)...),
		"target unended":   {0, 0, 0, 0, 0x80},
		"target long zero": {0, 0, 0, 0, 0x80, 0},
		"target missing":   {0, 0, 0, 0, 5},
		"target too short": {0, 0, 0, 0, 2, 't'},
		"target enormous":  binary.AppendUvarint([]byte{0, 0, 0, 0}, math.MaxUint64),
		"a byte too many":  {0, 0, 0, 0, 1, 't', 0},
	} {
		body := append(bytes.Clone(fixed), tail...)
		require.ErrorIs(t, r.Decode(okKey, seal(okKey, body)), ErrCorrupt, name)
	}
	huge := make([]byte, maxValueStored+1)
	require.ErrorIs(t, r.Decode(okKey, seal(okKey, huge)), ErrCorrupt)
}

func TestDecodeAllocatesNothing(t *testing.T) {
	r := testRecord()
	key, value := encode(&r)
	var got Record
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if err := got.Decode(key, value); err != nil {
			t.Fatal(err)
		}
	}))
}

func TestMetaValue(t *testing.T) {
	key := AppendMetaKey(nil, "name")
	value := sealMeta(nil, key, []byte("value"))
	got, err := OpenMeta(key, value)
	require.NoError(t, err)
	require.Equal(t, "value", string(got))
	for bit := range 8 * len(value) {
		value[bit/8] ^= 1 << (bit % 8)
		_, err := OpenMeta(key, value)
		require.ErrorIs(t, err, ErrCorrupt)
		value[bit/8] ^= 1 << (bit % 8)
	}
	_, err = OpenMeta(AppendMetaKey(nil, "other"), value)
	require.ErrorIs(t, err, ErrCorrupt)
}

func TestCheckFormat(t *testing.T) {
	for value, want := range map[string]error{
		string(formatValue(1)): nil, string(formatValue(FormatVersion)): nil,
		string(formatValue(FormatVersion + 1)): ErrNewerFormat, string(formatValue(0)): ErrCorrupt, "1": ErrCorrupt,
	} {
		version, err := checkFormat([]byte(value))
		require.ErrorIs(t, err, want)
		require.Equal(t, want == nil, version > 0)
	}
}

// TestBatchOverLimit checks that a batch stops growing at its limit and stays readable.
func TestBatchOverLimit(t *testing.T) {
	var b Batch
	for range 2 * MaxBatchBytes / MaxMetaBytes {
		b.SetMeta("m", make([]byte, MaxMetaBytes))
	}
	require.ErrorIs(t, b.Err(), ErrLimit)
	require.LessOrEqual(t, b.Bytes(), MaxBatchBytes+2*MaxMetaBytes)
	n := 0
	for range b.All() {
		n++
	}
	require.Equal(t, b.Len(), n)
}

func FuzzRecordRoundTrip(f *testing.F) {
	f.Add("t", "k", "g", "", uint64(1), int64(2), uint8(3), uint16(4), int64(5), uint64(6), uint32(7), int64(-8))
	f.Add("", "", "", "target", uint64(math.MaxUint64), int64(0), uint8(0), uint16(FlagLink), int64(0), uint64(0),
		uint32(0), int64(0))
	f.Add("t", "k", "g", strings.Repeat("t", MaxKeyBytes+1), uint64(0), int64(2), uint8(3), uint16(4), int64(5),
		uint64(6), uint32(7), int64(-8))
	f.Fuzz(func(t *testing.T, tenant, key, group, target string, gen uint64, size int64, typ uint8, flags uint16,
		soft int64, digest uint64, loc uint32, mtime int64) {
		want := Record{
			Tenant: tenant, Key: key, Gen: gen, Group: group, Target: target, Size: size, Type: typ, Flags: Flags(flags),
			SoftUntil: soft, Digest: digest, Loc: Loc{loc, ^loc, loc << 1}, OwnMtime: mtime,
		}
		var b Batch
		b.Put(&want)
		if b.Err() != nil {
			require.ErrorIs(t, b.Err(), ErrLimit)
			require.Zero(t, b.Len())
			return
		}
		for k, v := range b.All() {
			var got Record
			require.NoError(t, got.Decode(k, v))
			require.Equal(t, want, got)
			bit := rand.IntN(8 * len(v))
			v[bit/8] ^= 1 << (bit % 8)
			require.ErrorIs(t, got.Decode(k, v), ErrCorrupt, "bit %d", bit)
		}
	})
}

// FuzzDecode feeds arbitrary bytes, as they are and with a checksum that is right. What decodes must encode to the
// very same bytes.
func FuzzDecode(f *testing.F) {
	r := testRecord()
	key, value := encode(&r)
	f.Add(key, value)
	f.Add(key, value[:len(value)-checksumBytes])
	smallest := append([]byte{recordVersion}, make([]byte, recordFixed-1+5)...)
	f.Add(AppendKey(nil, "", "", 0), smallest)
	f.Add(AppendKey(nil, "", "", math.MaxUint64), smallest[:len(smallest)-1])
	f.Add([]byte{prefixObject, 0}, smallest)
	link := Record{Key: "link", Gen: 1, Flags: FlagLink, Target: strings.Repeat("t", 200)}
	key, value = encode(&link)
	f.Add(key, value)
	f.Fuzz(func(t *testing.T, key, value []byte) {
		for _, v := range [][]byte{value, seal(key, value)} {
			var r Record
			if r.Decode(key, v) != nil {
				continue
			}
			require.NoError(t, r.validate())
			k, again := encode(&r)
			require.Equal(t, key, k)
			require.Equal(t, v, again)
		}
	})
}
