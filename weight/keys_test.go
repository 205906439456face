package weight

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store"
)

var longName = strings.Repeat("x", 4096)

func TestGoldenKeys(t *testing.T) {
	for _, c := range []struct{ model, revision, file, fileKey, manifestKey, uri string }{
		{"m", "r", "a.safetensors", "weight:m:r:file:a.safetensors", "weight:m:r:manifest", "mooncake-weight://m/r"},
		{"org/model", "1", "config.json", "weight:org/model:1:file:config.json", "weight:org/model:1:manifest",
			"mooncake-weight://org/model/1"},
		{"a:b", "v:1", "x:y", "weight:a%3Ab:v%3A1:file:x%3Ay", "weight:a%3Ab:v%3A1:manifest", "mooncake-weight://a:b/v:1"},
		{"a%3Ab", "50%", "100%.json", "weight:a%253Ab:50%25:file:100%25.json", "weight:a%253Ab:50%25:manifest",
			"mooncake-weight://a%253Ab/50%25"},
		{"模型/größe", "версия", "ключ", "weight:模型/größe:версия:file:ключ", "weight:模型/größe:версия:manifest",
			"mooncake-weight://%E6%A8%A1%E5%9E%8B/gr%C3%B6%C3%9Fe/%D0%B2%D0%B5%D1%80%D1%81%D0%B8%D1%8F"},
		{"my model", "rev 1", "a b", "weight:my model:rev 1:file:a b", "weight:my model:rev 1:manifest",
			"mooncake-weight://my%20model/rev%201"},
		{"m", "r", "manifest", "weight:m:r:file:manifest", "weight:m:r:manifest", "mooncake-weight://m/r"},
		{"m:manifest", "r", "record", "weight:m%3Amanifest:r:file:record", "weight:m%3Amanifest:r:manifest",
			"mooncake-weight://m:manifest/r"},
		{"m?q", "r#f", "sub/dir/f", "weight:m?q:r#f:file:sub/dir/f", "weight:m?q:r#f:manifest", "mooncake-weight://m%3Fq/r%23f"},
	} {
		r := Ref{c.model, c.revision}
		require.NoError(t, r.Validate(), c.model)
		require.NoError(t, checkFileName(c.file))
		require.Equal(t, c.fileKey, r.FileKey(c.file))
		require.Equal(t, c.manifestKey, r.ManifestKey())
		require.Equal(t, c.uri, r.URI())
		back, err := ParseURI(c.uri)
		require.NoError(t, err, c.uri)
		require.Equal(t, r, back)
		got, rest, err := parseKey(c.fileKey)
		require.NoError(t, err)
		require.Equal(t, r, got)
		require.Equal(t, "file:"+encode(c.file), rest)
	}
}

func TestBadNames(t *testing.T) {
	for _, r := range []Ref{
		{"", "1"}, {"m", ""}, {"m", "a/b"}, {"/m", "1"}, {"m/", "1"}, {"a//b", "1"}, {"..", "1"}, {"a/../b", "1"}, {"m", ".."},
		{"m", "."}, {longName, "1"}, {"m", longName}, {"m\x00", "1"}, {"m\n", "1"}, {"\xff", "1"}, {"m", "\x7f"},
		{strings.Repeat(":", 400), "1"}, // 1200 bytes encoded
	} {
		require.ErrorIs(t, r.Validate(), ErrInvalid, "%.40q %.40q", r.ModelID, r.Revision)
	}
	for _, name := range []string{"", "/a", "a/", "..", "../a", "a/../b", "./a", "a//b", "a\x00", longName, strings.Repeat("x", 256),
		"d/" + strings.Repeat("x", 256)} {
		require.ErrorIs(t, checkFileName(name), ErrInvalid, "%.40q", name)
	}
	for _, uri := range []string{"", "mooncake-weight://", "mooncake-weight:///", "mooncake-weight:///m/1", "mooncake-weight://m",
		"mooncake-weight://m/", "mooncake-weight:/m/1", "http://m/1", "mooncake-weight://m//1", "mooncake-weight://m/1/",
		"mooncake-weight://m/%", "mooncake-weight://m/%zz", "mooncake-weight://m/a%2Fb", "mooncake-weight://m/1?x",
		"mooncake-weight://m/1#x", "mooncake-weight://../1", "mooncake-weight://m/..", "mooncake-weight://%00/1",
		"mooncake-weight://" + longName + "/1"} {
		_, err := ParseURI(uri)
		require.ErrorIs(t, err, ErrInvalid, "%.60q", uri)
		require.Less(t, len(err.Error()), 1000)
	}
}

func TestLongestNamesFit(t *testing.T) {
	r := Ref{strings.Repeat("m", MaxModelBytes), strings.Repeat("r", MaxRevisionBytes)}
	require.NoError(t, r.Validate())
	name := strings.TrimSuffix(strings.Repeat(strings.Repeat("d", 127)+"/", MaxFileNameBytes/128), "/")
	require.NoError(t, checkFileName(name))
	for _, k := range []string{r.FileKey(name), r.receiptKey(name), r.ManifestKey(), r.recordKey(), r.group()} {
		require.LessOrEqual(t, len(k), store.MaxKeyBytes)
	}
	require.LessOrEqual(t, len(r.group()), store.MaxGroupBytes)
}

// Revisions whose names look like what stands beside another's directory must not meet it.
func TestLoadPathsAreApart(t *testing.T) {
	m := &Manager{loadRoot: "/l"}
	cut := strings.Repeat("x", 300)
	refs := []Ref{{"m", "1"}, {"m", "1.lock"}, {"m", "1.build"}, {"m", "1%lock"}, {"m", "1%build"}, {"m/1", "x"}, {"m%2F1", "x"},
		{cut, "1"}, {cut + "y", "1"}, {element(cut), "1"}, {"M", "1"}, {"m ", "1"}, {"m", strings.Repeat("%", 80)},
		{"a/b", "c"}, {"a--b", "c"}, {"a", "b--c"}, {"a-", "b"}, {"a", "-b"}, {"a-", "-b"}, {"a_b", "c"}, {"a b", "c"},
		{"a@b", "c"}, {"a", "b@c"}, {"a:b", "c"}, {".a", "b"}, {"..a", "b"}, {"ü", "1"}, {"模型", "1"}, {"_", "1"}, {cut, "2"},
		{"a---0123456789abcdef0123456789abcdef", "1"}}
	seen := map[string]Ref{}
	for _, r := range refs {
		name := filepath.Base(m.directoryPath(r))
		require.Regexp(t, `^[A-Za-z0-9_][A-Za-z0-9._-]*$`, name, "%v", r)
		require.NotEqual(t, '.', name[0])
	}
	for r, want := range map[Ref]string{{"org/model", "1"}: "org--model--1", {"Qwen/Qwen3-0.6B", "main"}: "Qwen--Qwen3-0.6B--main", {"m", "v1.0"}: "m--v1.0"} {
		require.Equal(t, "/l/"+want, m.directoryPath(r))
	}
	for _, r := range refs {
		require.NoError(t, r.Validate())
		p := m.directoryPath(r)
		for _, path := range []string{p, p + lockSuffix, p + buildSuffix} {
			other, ok := seen[path]
			require.False(t, ok, "%v and %v share %s", r, other, path)
			seen[path] = r
		}
		for _, e := range strings.Split(p, "/") {
			require.LessOrEqual(t, len(e)+len(buildSuffix), 255)
		}
		require.NotContains(t, p, " ", "a path without blanks survives a shell")
	}
}

func TestStates(t *testing.T) {
	require.Equal(t, "IMPORTING READY SERVING IDLE EVICTING EVICTED REHYDRATING",
		strings.Join([]string{string(Importing), string(Ready), string(Serving), string(Idle), string(Evicting), string(Evicted),
			string(Rehydrating)}, " "))
}
