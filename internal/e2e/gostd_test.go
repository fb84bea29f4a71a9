package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// fewPackages are tested every time: they are quick, and say most about a CPU.
var fewPackages = []string{"math", "math/bits", "strconv", "sync/atomic", "hash/crc32", "crypto/sha256", "sort", "unicode/utf8"}

// manyPackages are tested when FORKD_TEST_GO_STD is set.
var manyPackages = []string{
	"math/...", "strconv", "sync/atomic", "hash/...", "crypto/...", "encoding/...", "sort", "unicode/...", "regexp/...", "compress/...",
}

// otherPackages have tests of Go's sources and tools, which are not in the guest,
// or benchmarks only.
var otherPackages = map[string]bool{
	"crypto/internal/fips140/aes/gcm":     true,
	"crypto/internal/fips140/drbg":        true,
	"crypto/internal/fips140/nistec/fiat": true,
	"crypto/internal/fips140deps":         true,
	"crypto/internal/fips140test":         true,
	"math/big/internal/asmgen":            true,
}

// The standard library of Go, compiled for the guests, passes its own tests in
// them: on translated code, and on the interpreter.
func TestGoStandardLibrary(t *testing.T) {
	notOnKVM(t, "it is the host's processor that executes instructions there, which Go's authors test")
	d := shared(t)
	goroot := strings.TrimSpace(goTool(t, "env", "GOROOT"))
	packages := fewPackages
	if os.Getenv("FORKD_TEST_GO_STD") != "" {
		packages = listPackages(t, manyPackages)
	}
	programs := t.TempDir()
	for _, engine := range executions(d) {
		t.Run(engine.name, func(t *testing.T) {
			d := engine.daemon(t)
			for _, pkg := range packages {
				t.Run(pkg, func(t *testing.T) {
					// Some need nearly all the memory that a child has.
					d.testPackage(t, d.fork(t, 1)[0], goroot, pkg, testProgram(t, programs, pkg))
				})
			}
		})
	}
}

// testProgram returns a package's test program in dir, which it makes if need be.
func testProgram(t *testing.T, dir, pkg string) string {
	t.Helper()
	file := filepath.Join(dir, strings.ReplaceAll(pkg, "/", "-")+".test")
	if _, err := os.Stat(file); err != nil {
		goTool(t, "test", "-c", "-trimpath", "-ldflags=-s -w", "-o", file, pkg)
	}
	return file
}

// goTool runs the go command for the guest's platform.
func goTool(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+guestArch(), "CGO_ENABLED=0", "GOFLAGS=")
	out, err := cmd.Output()
	if err != nil {
		if e, ok := err.(*exec.ExitError); ok {
			err = fmt.Errorf("%w: %s", err, e.Stderr)
		}
		t.Fatalf("%s: %v", cmd, err)
	}
	return string(out)
}

// listPackages returns the packages that have tests.
func listPackages(t *testing.T, patterns []string) (packages []string) {
	t.Helper()
	args := append([]string{"list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}"}, patterns...)
	for pkg := range strings.FieldsSeq(goTool(t, args...)) {
		if !otherPackages[pkg] {
			packages = append(packages, pkg)
		}
	}
	return packages
}

// testPackage runs a package's tests in a child, in a directory that has their
// data where their sources would be.
func (d *daemon) testPackage(t *testing.T, id, goroot, pkg, program string) {
	const root = "/var/tmp/go"
	dir := path.Join(root, "src", pkg)
	d.putFile(t, id, program, path.Join(dir, "tests"), 0o755)
	d.putData(t, id, filepath.Join(goroot, "src", pkg), dir)
	for at := path.Join("src", pkg); at != "."; at = path.Dir(at) { // some share data
		d.putTree(t, id, filepath.Join(goroot, at, "testdata"), path.Join(root, at, "testdata"))
	}
	const limit = 20 * time.Minute
	seconds := limit.Seconds()
	start := time.Now()
	out, err := d.Exec(limited(t, limit+patience), id, client.ExecRequest{
		// In turn: whether those of encoding/gob that want most of the memory meet depends on how busy the host is.
		Args: []string{"./tests", "-test.short", "-test.parallel=1", "-test.timeout=" + limit.String()}, Cwd: dir, TimeoutSecs: &seconds,
		Env: map[string]string{"GOMEMLIMIT": "256MiB"}, // the child has twice that
	})
	switch {
	case err != nil:
		t.Fatal(err)
	case out.ExitCode != 0 || !strings.HasSuffix(out.Stdout, "PASS\n") || strings.Contains(out.Stderr, "no tests to run"):
		t.Errorf("exit status %d\n%s%s", out.ExitCode, tail(out.Stdout), tail(out.Stderr))
	}
	t.Logf("took %.1f s", time.Since(start).Seconds())
}

// tail returns the end of what a command printed.
func tail(s string) string { return s[max(0, len(s)-4000):] }

// putData copies the files of a directory of the host that are no sources.
func (d *daemon) putData(t *testing.T, id, from, to string) {
	t.Helper()
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		switch name := entry.Name(); {
		case !entry.Type().IsRegular():
		case slices.Contains([]string{".go", ".s", ".h"}, filepath.Ext(name)):
		default:
			d.putFile(t, id, filepath.Join(from, name), path.Join(to, name), 0o644)
		}
	}
}

// putTree copies a directory of the host into a child, if there is one.
func (d *daemon) putTree(t *testing.T, id, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(from, file)
		if err == nil {
			d.putFile(t, id, file, path.Join(to, filepath.ToSlash(name)), 0o644)
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
}

func (d *daemon) putFile(t *testing.T, id, from, to string, mode fs.FileMode) {
	t.Helper()
	f, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := d.WriteFile(limited(t, patience), id, to, f, client.WriteOptions{Mode: &mode, Parents: true}); err != nil {
		t.Fatalf("copying %s: %v", from, err)
	}
}
