// Package archtest checks the rules that hold the architecture together: who
// may import whom, where unsafe code lives, and that every package says what
// it is.
package archtest

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/forkd-dev/forkd/"

// rules say which packages a package must not reach, directly or through
// others. Patterns end in "..." to cover a tree; a leading "std:" names a
// package of the standard library.
//
// A rule with "import:" in front of the banned package is about direct imports
// only: what is reached through a package of the layer between is fine.
var rules = []struct {
	packages, banned string
	why              string
}{
	{"internal/page", "internal/...", "the page store stands on nothing"},
	{"internal/memory", "internal/engine/...", "memory does not know who uses it"},
	{"internal/riscv/...", "internal/virtio/...", "a CPU knows no devices"},
	{"internal/riscv/...", "internal/board", "a CPU knows no board"},
	{"internal/riscv/...", "std:net", "a CPU has no network"},
	{"internal/virtio/...", "internal/engine/...", "devices run under any engine"},
	{"internal/virtio/...", "internal/board", "a device does not know where it is plugged in"},
	{"internal/virtio/...", "internal/machine", "a device does not know its machine"},
	{"internal/device/...", "internal/engine/...", "devices run under any engine"},
	{"internal/device/...", "internal/board", "a device does not know where it is plugged in"},
	{"internal/board", "internal/engine/...", "the board is data"},
	{"internal/machine", "internal/engine/soft", "the engine is passed in as a value"},
	{"internal/machine", "internal/sandbox", "a machine does not know who owns it"},
	{"internal/snapshot", "internal/machine", "snapshots are files, not machines"},
	{"internal/snapshot/archive", "internal/hub", "a pack does not know how it travels"},
	{"internal/hub", "internal/sandbox", "a hub does not know who ships"},
	{"internal/hub", "internal/machine", "a hub carries files, not machines"},
	{"internal/records", "internal/...", "records stand on nothing"},
	{"internal/journal", "internal/cell/...", "a journal knows cells by their names"},
	{"internal/journal", "internal/sandbox", "a journal is told what happens, and does not know by whom"},
	{"internal/sandbox", "internal/engine/soft", "the engine is passed in as a value"},
	{"internal/cell/wire", "internal/snapshot", "what is said does not depend on who says it"},
	{"internal/cell/inside", "internal/snapshot", "a cell knows layers, not where they are kept"},
	{"internal/cell/inside", "internal/agent", "a cell carries bytes into guests, and does not know what they say"},
	{"internal/cell/inside", "internal/engine/soft", "the engine is passed in as a value"},
	{"internal/cell", "internal/sandbox", "a cell does not know who owns its machines"},
	{"internal/sandbox", "import:std:net/http", "the domain has no HTTP"},
	{"internal/server", "import:internal/machine", "the server speaks to the domain only"},
	{"internal/e2b/...", "import:internal/machine", "an API speaks to the domain only"},
	{"internal/e2b/...", "import:internal/agent", "an API speaks to the domain only"},
	{"internal/e2b/...", "internal/server", "two APIs that know nothing of each other"},
	{"internal/ports", "internal/...", "a proxy is given connections"},
	{"internal/jail", "internal/...", "a jail does not know who is in it"},
	{"internal/gate", "internal/...", "who may ask does not depend on what"},
	{"internal/host", "internal/...", "the host does not know who asks"},
	{"internal/cli", "import:internal/sandbox", "the command line speaks through the client only"},
	{"internal/cli", "import:internal/machine", "the command line speaks through the client only"},
	{"client", "internal/sandbox", "the client is usable without the daemon's code"},
	{"cmd/forkd-agent", "std:net/http", "the agent is small"},
	{"cmd/forkd-agent", "internal/machine", "the agent is the guest's half"},
}

type goPackage struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string
	Deps       []string
	Doc        string
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Imports,Deps,Doc", "./...")
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func matches(path, pattern string) bool {
	if std, ok := strings.CutPrefix(pattern, "std:"); ok {
		return path == std
	}
	path, ok := strings.CutPrefix(path, module)
	if !ok {
		return false
	}
	if tree, ok := strings.CutSuffix(pattern, "/..."); ok {
		return path == tree || strings.HasPrefix(path, tree+"/")
	}
	return path == pattern
}

func TestImports(t *testing.T) {
	all := packages(t)
	for _, r := range rules {
		subject := false
		for _, p := range all {
			if !matches(p.ImportPath, r.packages) || isTestHelper(p.ImportPath) {
				continue
			}
			subject = true
			reached := p.Deps
			banned, direct := strings.CutPrefix(r.banned, "import:")
			if direct {
				reached = p.Imports
			}
			for _, d := range reached {
				if matches(d, banned) && d != p.ImportPath {
					t.Errorf("%s reaches %s: %s", p.ImportPath, d, r.why)
				}
			}
		}
		if !subject {
			t.Errorf("rule about %s is about no package", r.packages)
		}
	}
}

// isTestHelper tells packages that only tests import.
func isTestHelper(path string) bool {
	return strings.HasSuffix(path, "test")
}

func TestOnlyTestsImportTestHelpers(t *testing.T) {
	for _, p := range packages(t) {
		if isTestHelper(p.ImportPath) {
			continue
		}
		for _, d := range p.Imports {
			if strings.HasPrefix(d, module) && isTestHelper(d) {
				t.Errorf("%s imports %s outside of its tests", p.ImportPath, d)
			}
		}
	}
}

func TestUnsafeFilesAreMarked(t *testing.T) {
	for _, p := range packages(t) {
		if !strings.HasPrefix(p.ImportPath, module) {
			continue
		}
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			imports := slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"unsafe"` })
			marked := strings.HasSuffix(name, "_unsafe.go") || strings.Contains(name, "_unsafe_")
			generated := strings.HasSuffix(name, ".pb.go")
			if imports && !marked && !generated {
				t.Errorf("%s imports unsafe: move that part to a file named *_unsafe.go", filepath.Join(p.ImportPath, name))
			}
		}
	}
}

func TestPackagesAreDocumented(t *testing.T) {
	for _, p := range packages(t) {
		if p.Doc == "" && len(p.GoFiles) > 0 {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}
