package suite

import (
	_ "embed"
	"slices"
)

// Boot is the name of what is timed before any workload: from the start of the
// virtual machine monitor until init has loaded the modules and mounted the
// root file system.
const Boot = "boot"

// Self, as the first word of a command, is the guest program itself.
const Self = "self"

// Tools of the guest program, the word after Self.
const (
	ToolText = "text" // PATH SIZE: writes compressible text
	ToolLoop = "loop" // N: integer arithmetic in compiled code
)

// Workload is something to time. Everything it prints is deterministic, so
// that it can be compared between machines.
type Workload struct {
	Name  string
	Setup []string // command that is run before, not timed; it may be empty
	Run   []string // command that is timed
	Count int      // how many processes run the command, one after the other
	Check []string // command that is run after, not timed, to print what the workload left; it may be empty
}

// Python programs. Each prints what it has computed.
var (
	//go:embed python/arith.py
	pyArith string
	//go:embed python/dict.py
	pyDict string
	//go:embed python/string.py
	pyString string
	//go:embed python/json.py
	pyJSON string
	//go:embed python/regex.py
	pyRegex string
	//go:embed python/sort.py
	pySort string
	//go:embed python/sha256.py
	pySHA256 string
	//go:embed python/matmul.py
	pyMatmul string
	//go:embed python/files.py
	pyFiles string
)

const gitCommit = `set -e
cd /tmp/tree
git init -q
git add .
git commit -q -m files`

// All returns the workloads in the order in which they run.
//
// Setup of a Python workload runs once what is imported later, because the
// image has no bytecode: the first import of a module compiles it and writes
// its .pyc, which would be all that is measured.
func All() []Workload {
	python := func(code string) []string { return []string{"python3", "-c", code} }
	return []Workload{
		{Name: "python-start", Setup: python("pass"), Run: python("pass"), Count: 20},
		{Name: "import-numpy", Setup: python("import numpy"), Run: python("import numpy"), Count: 5},
		{Name: "py-arith", Setup: python("pass"), Run: python(pyArith), Count: 1},
		{Name: "py-dict", Setup: python("pass"), Run: python(pyDict), Count: 1},
		{Name: "py-string", Setup: python("pass"), Run: python(pyString), Count: 1},
		{Name: "py-json", Setup: python("import json"), Run: python(pyJSON), Count: 1},
		{Name: "py-regex", Setup: python("import re"), Run: python(pyRegex), Count: 1},
		{Name: "py-sort", Setup: python("import random, array"), Run: python(pySort), Count: 1},
		{Name: "sha256", Setup: python("import hashlib"), Run: python(pySHA256), Count: 1},
		{
			Name:  "gzip",
			Setup: []string{Self, ToolText, "/tmp/text", "16777216"},
			Run:   []string{"gzip", "-nk", "/tmp/text"}, Count: 1,
			Check: []string{"sha256sum", "/tmp/text.gz"},
		},
		{Name: "matmul", Setup: python("import numpy, hashlib"), Run: python(pyMatmul), Count: 1},
		{
			Name:  "git",
			Setup: python(pyFiles),
			Run:   []string{"sh", "-c", gitCommit}, Count: 1,
			Check: []string{"git", "-C", "/tmp/tree", "rev-parse", "HEAD"},
		},
		{Name: "int-loop", Run: []string{Self, ToolLoop, "200000000"}, Count: 1},
	}
}

// Find returns the workload with that name.
func Find(name string) (Workload, bool) {
	all := All()
	i := slices.IndexFunc(all, func(w Workload) bool { return w.Name == name })
	if i < 0 {
		return Workload{}, false
	}
	return all[i], true
}
