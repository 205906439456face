package store_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/kvcache-ai/mooncake-go"

// layers says for each part of the module which other parts it may import. A package belongs to the part with the
// longest matching path; one that belongs to none has no place in the layout.
var layers = map[string][]string{
	"transfer":             {},
	"artifact/source":      {},
	"artifact/safetensors": {},
	"artifact/torch":       {},
	"store":                {"transfer"},
	"artifact":             {"store", "artifact/source", "artifact/safetensors", "artifact/torch"},
	"weight":               {"store", "artifact", "artifact/source", "artifact/safetensors", "artifact/torch"},
	"kvcs":                 {"store"},
	"capi": {"transfer", "store", "artifact", "artifact/source", "artifact/safetensors", "artifact/torch", "weight",
		"kvcs"},
	"examples": {"transfer", "store", "artifact", "artifact/source", "artifact/safetensors", "artifact/torch", "weight",
		"kvcs", "capi"},
}

// storageClients may not be linked into the store, directly or through anything it imports.
var storageClients = []string{"minio", "aliyun", "alibabacloud", "aws-sdk-go", "huggingface"}

// purePackages do no I/O and read no clock. The value lists what else they may not import. This looks at their own
// imports only: master calls the allocator, whose package also maps segments.
var purePackages = map[string][]string{
	"store/internal/master": nil,
	"store/internal/policy": {"sync", "sync/atomic"},
}

var (
	impureImports = []string{"os", "net", "syscall", "io/ioutil", "golang.org/x/sys/unix", "C"}
	clockCalls    = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}
)

// listed is a package as go list prints it.
type listed struct {
	ImportPath string
	Dir        string
	Imports    []string
	GoFiles    []string
	CgoFiles   []string
}

type graph map[string]*listed

func TestLayering(t *testing.T) {
	for _, tags := range []string{"", "norocksdb", "invariants"} {
		g := list(t, tags)
		require.Contains(t, g, module+"/store")
		require.Empty(t, violations(g), "tags %q", tags)
		require.Empty(t, clockReaders(t, g), "tags %q", tags)
	}
}

// list runs go list on all packages of the module and what they import. Test files are not part of it.
func list(t *testing.T, tags string) graph {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-tags", tags, "-json=ImportPath,Dir,Imports,GoFiles,CgoFiles", module+"/...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	g := graph{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(listed)
		if err := dec.Decode(p); err == io.EOF {
			return g
		} else if err != nil {
			t.Fatal(err)
		}
		g[p.ImportPath] = p
	}
}

// violations describes every edge of g that the layout forbids.
func violations(g graph) (bad []string) {
	for _, path := range slices.Sorted(maps.Keys(g)) {
		from, ours := local(path)
		if !ours {
			continue
		}
		if partOf(from) == "" {
			bad = append(bad, from+" has no place in the layout")
		}
		for _, imported := range g[path].Imports {
			if to, ours := local(imported); ours && !allowed(from, to) {
				bad = append(bad, from+" imports "+to)
			}
		}
		if partOf(from) == "store" {
			bad = append(bad, clientsBehind(g, path)...)
		}
		if more, pure := purePackages[from]; pure {
			bad = append(bad, impureImportsOf(g[path], more)...)
		}
	}
	return bad
}

func local(path string) (rel string, ours bool) {
	return strings.CutPrefix(path, module+"/")
}

func partOf(rel string) string {
	for p := rel; p != "."; p = filepath.Dir(p) {
		if _, ok := layers[p]; ok {
			return p
		}
	}
	return ""
}

func allowed(from, to string) bool {
	a, b := partOf(from), partOf(to)
	if a == b {
		return true
	}
	return slices.Contains(layers[a], b) && !slices.Contains(strings.Split(to, "/"), "internal")
}

// clientsBehind finds the storage clients among all that path imports, directly or not.
func clientsBehind(g graph, path string) (bad []string) {
	seen, todo := map[string]bool{}, []string{path}
	for len(todo) > 0 {
		p := g[todo[len(todo)-1]]
		todo = todo[:len(todo)-1]
		if p == nil {
			continue
		}
		for _, next := range p.Imports {
			if seen[next] {
				continue
			}
			seen[next] = true
			todo = append(todo, next)
			if slices.ContainsFunc(storageClients, func(c string) bool { return strings.Contains(next, c) }) {
				bad = append(bad, fmt.Sprintf("%s links the storage client %s", path, next))
			}
		}
	}
	return bad
}

func impureImportsOf(p *listed, more []string) (bad []string) {
	for _, imported := range p.Imports {
		root, _, _ := strings.Cut(imported, "/")
		if slices.Contains(impureImports, imported) || root == "os" || root == "net" || slices.Contains(more, imported) {
			bad = append(bad, fmt.Sprintf("%s is pure but imports %s", p.ImportPath, imported))
		}
	}
	return bad
}

// clockReaders finds the uses of the clock in the pure packages.
func clockReaders(t *testing.T, g graph) (bad []string) {
	t.Helper()
	for rel := range purePackages {
		p := g[module+"/"+rel]
		if p == nil {
			continue
		}
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
			file := filepath.Join(p.Dir, name)
			found, err := clockUses(file, nil)
			require.NoError(t, err)
			bad = append(bad, found...)
		}
	}
	return bad
}

// clockUses finds time.Now and the like in a file, or in src if that is not nil.
func clockUses(file string, src any) (found []string, err error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	name := "" // under which the file knows package time
	for _, imp := range f.Imports {
		if imp.Path.Value == `"time"` {
			if name = "time"; imp.Name != nil {
				name = imp.Name.Name
			}
		}
	}
	if name == "." {
		return []string{file + " imports time into its own names"}, nil
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && name != "" && slices.Contains(clockCalls, sel.Sel.Name) {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == name {
				found = append(found, fmt.Sprintf("%s: time.%s", fset.Position(n.Pos()), sel.Sel.Name))
			}
		}
		return true
	})
	return found, nil
}

// TestLayeringFindsForbiddenEdges feeds the checker graphs that are wrong in one place each.
func TestLayeringFindsForbiddenEdges(t *testing.T) {
	for _, edge := range []struct {
		path string // from > to > ...
		want string // empty: allowed
	}{
		{"store > transfer", ""},
		{"store > store/internal/master > store/internal/policy", ""},
		{"artifact > store", ""},
		{"artifact > artifact/safetensors > artifact/safetensors/internal/x", ""},
		{"weight > artifact/source", ""},
		{"weight/internal/x > store", ""},
		{"kvcs > store", ""},
		{"capi/lib > weight", ""},
		{"examples/demo > kvcs", ""},
		{"artifact/source > !net/http", ""},
		{"artifact > !github.com/minio/minio-go/v7", ""},
		{"store/internal/arena > !os", ""},
		{"store/internal/master > !sync", ""},
		{"store/internal/master > store/internal/arena > !os", ""},
		{"store/internal/master > !time", ""},

		{"transfer > store", "transfer imports store"},
		{"store > artifact", "store imports artifact"},
		{"store/internal/master > weight", "imports weight"},
		{"store > examples/demo", "store imports examples/demo"},
		{"artifact/source > store", "artifact/source imports store"},
		{"artifact/torch > artifact", "artifact/torch imports artifact"},
		{"artifact/torch > artifact/source", "artifact/torch imports artifact/source"},
		{"artifact > weight", "artifact imports weight"},
		{"artifact > transfer", "artifact imports transfer"},
		{"weight > transfer", "weight imports transfer"},
		{"weight > kvcs", "weight imports kvcs"},
		{"weight > store/internal/master", "weight imports store/internal/master"},
		{"kvcs > weight", "kvcs imports weight"},
		{"capi > examples/demo", "capi imports examples/demo"},
		{"examples/demo > store/internal/arena", "examples/demo imports store/internal/arena"},
		{"util", "util has no place"},
		{"storex > transfer", "storex has no place"},
		{"store > !github.com/minio/minio-go/v7", "links the storage client"},
		{"store/internal/ssd > !example.com/x > !github.com/aliyun/alibabacloud-oss-go-sdk-v2/oss", "links the storage client"},
		{"store > transfer > !github.com/someone/huggingface-go", "links the storage client"},
		{"store/internal/master > !os", "is pure but imports os"},
		{"store/internal/master > !os/exec", "is pure but imports os/exec"},
		{"store/internal/policy > !net/http", "is pure but imports net/http"},
		{"store/internal/policy > !sync", "is pure but imports sync"},
	} {
		bad := violations(chain(edge.path))
		if edge.want == "" {
			require.Empty(t, bad, edge.path)
			continue
		}
		require.NotEmpty(t, bad, "%s was not found", edge.path)
		require.Contains(t, strings.Join(bad, "\n"), edge.want, edge.path)
	}
}

// chain makes the graph in which each package imports the next. A leading ! marks one that is not ours.
func chain(path string) graph {
	g := graph{}
	var last *listed
	for name := range strings.SplitSeq(path, " > ") {
		full, foreign := strings.CutPrefix(name, "!")
		if !foreign {
			full = module + "/" + name
		}
		p := &listed{ImportPath: full}
		g[full] = p
		if last != nil {
			last.Imports = append(last.Imports, full)
		}
		last = p
	}
	return g
}

func TestClockUses(t *testing.T) {
	for src, want := range map[string]int{
		`package p; import "time"; var d time.Duration = time.Second`:                     0,
		`package p; import "time"; var d = time.Now()`:                                    1,
		`package p; import "time"; var now = time.Now`:                                    1,
		`package p; import clock "time"; func f() { clock.Sleep(1); <-clock.After(1) }`:   2,
		`package p; import . "time"; var d = Now()`:                                       1,
		`package p; type c struct{}; func (c) Now() int; var time c; var n = time.Now()`:  0,
		`package p; import "time"; func f(t time.Time) { _ = time.Since(t); t.After(t) }`: 1,
	} {
		found, err := clockUses("src.go", src)
		require.NoError(t, err, src)
		require.Len(t, found, want, src)
	}
}
