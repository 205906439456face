package weight

// Rows of the weight RFC that phase 1 answers, and the tests that show it.
//
//	W1 W10 W23 W30*   one store holds both types       TestTypesShareOneStore
//	W2 W13 W27 W44-W49 W66-W72 W74 W77   import, load   TestRows, TestImportLoad, TestLoad...; engines: .ci/quickstart
//	W4 W40            one import, many loads            TestManyLoads
//	W7 W11 W9         the store's own primitives        TestTypesShareOneStore; layering: store/layering_test.go
//	W16 W45 W46 W52-W54 W75   type, pin, replicas       TestRows
//	W17 W43 W76       not evicted under pressure        TestPressure
//	W18 W36           plain Get                         TestRows
//	W19-W21 W38 W39 W62 W68   readiness of a revision   TestMissingFile, TestFlippedByte, TestCancelAndResume
//	W22 (P1: loaded)  delete refused while in use       TestDeleteWhileLoaded
//	W34 W51 W138      manifest is a METADATA object     TestRows, TestGoldenManifest
//	W37               lives of both are apart           TestTypesShareOneStore
//	W50 W51 W137      keys                              TestGoldenKeys, TestRows
//	W55-W61           fields of the manifest            TestGoldenManifest, TestRows
//	W63 W64           the tools                         examples/mooncake_weight/cli: TestPrograms...
//	W65               URI                               TestGoldenKeys, TestBadNames
//	W67               missing manifest is named         TestLoadOfNothing
//	W84*              immutable revisions               TestOtherBytes
//	W41*              only missing files are read       TestCancelAndResume
//	W100              state names                       TestStates
//	W139              hard pin by default, or not       TestRows
//	W129-W132         nothing changes for KV            TestTypesShareOneStore
//	(* of a later phase, held already)

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store"
)

// TestRows checks what an import leaves in the store, row by row.
func TestRows(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.put(2*mib, 1)
	e.mem.Put("vocab.txt", nil)
	e.mem.Put("README.md", []byte("taken"))
	e.mem.Put("optimizer.pt", []byte("left out"))
	r := Ref{"m", "r"}
	res := e.doImport(r)
	require.Equal(t, "README.md config.json "+shard1+" "+shard2+" "+mainIndex+" vocab.txt", strings.Join(names(res.Manifest.Files), " "))
	require.Equal(t, []Skipped{{"optimizer.pt", "training state"}}, res.Skipped)
	require.Equal(t, res.Skipped, res.Manifest.Skipped)
	require.Equal(t, FormatVersion, res.Manifest.Version)

	// The keys in the store and those of the manifest are the same, no more and no less.
	want := []string{"weight:m:r:manifest"}
	for _, f := range res.Manifest.Files {
		if f.Size > 0 {
			want = append(want, f.Key)
		}
	}
	slices.Sort(want)
	require.Equal(t, want, keysOf(t, e.s, ""))
	for _, f := range res.Manifest.Files {
		if f.Size == 0 {
			require.Empty(t, f.Key)
			require.Equal(t, sha(nil), f.SHA256)
			continue
		}
		require.Equal(t, "weight:m:r:file:"+f.Name, f.Key)
		info, err := e.s.Stat(f.Key)
		require.NoError(t, err)
		require.Equal(t, store.Weight, info.Type)
		require.True(t, info.HardPin)
		require.True(t, info.Durable)
		require.Equal(t, "weight:m:r", info.Group)
		require.Equal(t, f.Size, info.Size)
		p, err := e.s.Get(ctx, f.Key, nil)
		require.NoError(t, err)
		require.Equal(t, f.SHA256, sha(p))
	}
	info, err := e.s.Stat(r.ManifestKey())
	require.NoError(t, err)
	require.Equal(t, store.Metadata, info.Type)
	require.True(t, info.Durable)
	require.True(t, info.HardPin)

	p, err := e.s.Get(ctx, "weight:m:r:manifest", nil)
	require.NoError(t, err)
	man, err := ParseManifest(p)
	require.NoError(t, err)
	require.Equal(t, res.Manifest, man)
	require.Equal(t, "m", man.ModelID)
	require.Equal(t, "r", man.Revision)
	require.Equal(t, "mem://m", man.Source)
	require.Equal(t, Ready, man.Status)

	q := e.request(Ref{"m", "unpinned"})
	q.Unpinned = true
	_, err = e.m.Import(ctx, q)
	require.NoError(t, err)
	info, err = e.s.Stat(Ref{"m", "unpinned"}.FileKey(shard1))
	require.NoError(t, err)
	require.False(t, info.HardPin)
}

// goldenManifest is the stored form of a manifest that names no file left out, byte for byte: version 1, which every program
// reads.
const goldenManifest = `{
 "format_version": 1,
 "model_id": "org/<m> & ünï",
 "revision": "a:b%",
 "source": "mem://m",
 "status": "READY",
 "total_size": 89,
 "files": [
  {
   "name": "a:b.json",
   "key": "weight:org/<m> & ünï:a%3Ab%25:file:a%3Ab.json",
   "size": 1,
   "sha256": "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"
  },
  {
   "name": "empty.json",
   "size": 0,
   "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
  },
  {
   "name": "w.safetensors",
   "key": "weight:org/<m> & ünï:a%3Ab%25:file:w.safetensors",
   "size": 88,
   "sha256": "%s"
  }
 ]
}
`

func TestGoldenManifest(t *testing.T) {
	e := newEnv(t, store.Options{})
	w := []byte("\x48\x00\x00\x00\x00\x00\x00\x00" + `{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}` + "                   " + "12345678")
	e.mem.Put("w.safetensors", w)
	e.mem.Put("a:b.json", []byte("1"))
	e.mem.Put("empty.json", nil)
	r := Ref{"org/<m> & ünï", "a:b%"}
	e.doImport(r)
	p, err := e.s.Get(context.Background(), r.ManifestKey(), nil)
	require.NoError(t, err)
	want := fmtOnce(goldenManifest, sha(w))
	require.Equal(t, want, string(p))
	require.True(t, json.Valid(p))
	man, err := ParseManifest([]byte(want))
	require.NoError(t, err)
	again, err := man.Encode()
	require.NoError(t, err)
	require.Equal(t, want, string(again))

	e.mem.Put(".git/config", []byte("x"))
	e.mem.Put("w.bin", w)
	two := Ref{r.ModelID, "2"}
	e.doImport(two)
	p, err = e.s.Get(context.Background(), two.ManifestKey(), nil)
	require.NoError(t, err)
	want = strings.ReplaceAll(strings.ReplaceAll(want, "a%3Ab%25:", "2:"), "a:b%", "2")
	want = strings.Replace(want, `"format_version": 1`, `"format_version": 2`, 1)
	want = strings.TrimSuffix(want, "\n}\n") + `,
 "skipped": [
  {
   "name": ".git/",
   "reason": "version control"
  },
  {
   "name": "w.bin",
   "reason": "weights in another format: w.safetensors is taken"
  }
 ]
}
`
	require.Equal(t, want, string(p), "version 2 names what was left out")
	_, err = ParseManifest([]byte(strings.Replace(want, `"format_version": 2`, `"format_version": 1`, 1)))
	require.ErrorIs(t, err, ErrUnreadable)
}

func fmtOnce(format, s string) string { return strings.Replace(format, "%s", s, 1) }

func TestBadManifests(t *testing.T) {
	good := fmtOnce(goldenManifest, sha([]byte("x")))
	_, err := ParseManifest([]byte(good))
	require.NoError(t, err)
	for _, change := range [][2]string{
		{`"READY"`, `"IMPORTING"`}, {`"format_version": 1`, `"format_version": 0`}, {`"total_size": 89`, `"total_size": 90`},
		{`"size": 1,`, `"size": -1,`}, {`"size": 88`, `"size": 9223372036854775807`}, {`"name": "a:b.json"`, `"name": "../b"`},
		{`file:a%3Ab.json"`, `file:other"`}, {`"name": "empty.json"`, `"name": "a:b.json"`}, {`"6b86`, `"6B86`}, {`"6b86`, `"b86`},
		{`"model_id": "org`, `"model_id": "x`}, {`"status"`, `"more": 1, "status"`}, {"\n}\n", "\n}\n{}"}, {`{`, `[`}, {`"files": [`, `"files": [null,`},
	} {
		require.Contains(t, good, change[0])
		bad := strings.Replace(good, change[0], change[1], 1)
		_, err := ParseManifest([]byte(bad))
		require.ErrorIs(t, err, ErrUnreadable, "%v", change)
	}
}

func FuzzParseManifest(f *testing.F) {
	f.Add([]byte(fmtOnce(goldenManifest, sha(nil))))
	f.Add([]byte(`{"format_version":2}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		m, err := ParseManifest(p)
		if err != nil {
			return
		}
		q, err := m.Encode()
		require.NoError(t, err)
		again, err := ParseManifest(q)
		require.NoError(t, err)
		require.Equal(t, m, again)
	})
}

func FuzzParseURI(f *testing.F) {
	f.Add("mooncake-weight://org/m/1")
	f.Add("mooncake-weight://%25/%3A")
	f.Fuzz(func(t *testing.T, uri string) {
		r, err := ParseURI(uri)
		if err != nil {
			return
		}
		again, err := ParseURI(r.URI())
		require.NoError(t, err)
		require.Equal(t, r, again)
		got, _, err := parseKey(r.ManifestKey())
		require.NoError(t, err)
		require.Equal(t, r, got)
	})
}

// TestTypesShareOneStore keeps KV cache and weights side by side: one count, one set of primitives, separate lives.
func TestTypesShareOneStore(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.put(2*mib, 1)
	e.doImport(ref)
	require.NoError(t, e.s.Put(ctx, "kv", []byte("page"), &store.PutOptions{Type: store.KVCache}))
	require.NoError(t, e.s.Put(ctx, "untyped", []byte("page"), nil))
	u, err := e.s.Usage()
	require.NoError(t, err)
	require.Equal(t, int64(1), u.Objects[store.KVCache])
	require.Equal(t, int64(1), u.Objects[store.Unknown])
	require.Equal(t, int64(4), u.Objects[store.Weight])
	require.Equal(t, int64(1), u.Objects[store.Metadata])
	require.NoError(t, e.s.Remove("kv", true))
	e.deepOK(ref)
	require.NoError(t, e.s.Put(ctx, "kv", []byte("page"), &store.PutOptions{Type: store.KVCache}))
	require.NoError(t, e.m.Delete(ctx, ref))
	p, err := e.s.Get(ctx, "kv", nil)
	require.NoError(t, err)
	require.Equal(t, "page", string(p))
}

// TestPressure fills the store with KV cache many times over: not a byte of the weights goes.
func TestPressure(t *testing.T) {
	for name, opts := range map[string]store.Options{"memory": {MemoryBytes: 24 * mib}, "directory": {Dir: t.TempDir(), MemoryBytes: 16 * mib, SSDBytes: 32 * mib}} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			e := newEnv(t, opts)
			e.put(2*mib, 1)
			e.doImport(ref)
			page := make([]byte, 128<<10)
			for i := range 600 {
				page[0] = byte(i)
				require.NoError(t, e.s.Put(ctx, fmt.Sprint("kv", i), page, &store.PutOptions{Type: store.KVCache}))
				if i%100 == 0 {
					rep, err := e.m.Check(ctx, ref, Quick)
					require.NoError(t, err)
					require.NoError(t, rep.Err())
				}
			}
			e.deepOK(ref)
			ok, err := e.s.Probe("kv0")
			require.NoError(t, err)
			require.False(t, ok, "the KV cache had to give way")
		})
	}
}
