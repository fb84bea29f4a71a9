package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

const (
	pythonSDK     = "../../sdk/python"
	typeScriptSDK = "../../sdk/typescript"
	conformance   = "../../sdk/conformance"
)

// The table of behaviours that all SDKs share, with each of them.
func TestSDKConformance(t *testing.T) {
	d := shared(t)
	names := caseNames(t)
	check := func(t *testing.T, env []string, program string, args ...string) {
		if _, err := os.Stat(args[0]); err != nil { // so that "go test" knows when it has changed
			t.Fatal(err)
		}
		out := runSDK(t, d, env, program, args...)
		var passed []string
		for line := range strings.Lines(out) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "ok "); ok {
				passed = append(passed, name)
			}
		}
		if !slices.Equal(passed, names) {
			t.Errorf("%d of %d behaviours are as the table says:\n%s", len(passed), len(names), out)
		}
		boxes, err := d.Sandboxes(t.Context())
		if err != nil || len(boxes) != 0 {
			t.Errorf("the behaviours left %v, %v", boxes, err)
		}
	}
	for _, face := range []string{"sync", "async"} {
		t.Run("python-"+face, func(t *testing.T) {
			check(t, nil, lookPath(t, "python3"), filepath.Join(conformance, "runner.py"), face)
		})
	}
	t.Run("typescript", func(t *testing.T) {
		env := []string{"FORKD_SDK=" + builtTypeScript(t)}
		check(t, env, lookPath(t, "node"), filepath.Join(conformance, "runner.mjs"))
	})
}

// The examples in the READMEs, each as a program of its own, and those in examples. They leave nothing, and find nothing
// imported but what is in a snapshot that nobody has asked for more.
func TestSDKExamples(t *testing.T) {
	d := shared(t)
	usual := d.withUsualNames(t)
	env := []string{"FORKD_TAG=" + usual}
	onUsual := strings.NewReplacer(strconv.Quote(tag), strconv.Quote(usual)).Replace
	before := d.tags(t)
	t.Run("python", func(t *testing.T) {
		python := lookPath(t, "python3")
		for i, example := range append(examples(t, "../..", "python"), examples(t, pythonSDK, "python")...) {
			t.Run(fmt.Sprint(i+1), func(t *testing.T) {
				runSDK(t, d, env, python, "-c", onUsual(example))
			})
		}
		programs, err := filepath.Glob("../../examples/*.py")
		if err != nil || len(programs) == 0 {
			t.Fatalf("there are no examples: %v", err)
		}
		for _, program := range programs {
			t.Run(filepath.Base(program), func(t *testing.T) {
				runSDK(t, d, env, python, program)
			})
		}
	})
	t.Run("typescript", func(t *testing.T) {
		node, sdk := lookPath(t, "node"), builtTypeScript(t)
		lookPath(t, "npm") // the examples have to be compiled, too
		for i, example := range examples(t, typeScriptSDK, "typescript") {
			t.Run(fmt.Sprint(i+1), func(t *testing.T) {
				// It is inside of the package, which may import itself by its name.
				source := filepath.Join(sdk, fmt.Sprintf("example%d.mts", i+1))
				if err := os.WriteFile(source, []byte(onUsual(example)), 0o600); err != nil {
					t.Fatal(err)
				}
				compileExample(t, sdk, source)
				runSDK(t, d, env, node, strings.TrimSuffix(source, ".mts")+".mjs")
			})
		}
	})
	boxes, err := d.Sandboxes(t.Context())
	if err != nil || len(boxes) != 0 {
		t.Errorf("the examples left %v, %v", boxes, err)
	}
	if after := d.tags(t); !slices.Equal(after, before) {
		t.Errorf("the examples left of snapshots %q; there were %q", after, before)
	}
}

// withUsualNames derives a snapshot of the shared one in which no module has a name but numpy, as in one of a request
// that says nothing of modules, and returns its tag.
func (d *daemon) withUsualNames(t *testing.T) (name string) {
	t.Helper()
	name = "usual"
	_, err := d.DeriveSnapshot(limited(t, patience), tag, client.DeriveRequest{Tag: name, Evals: []string{`
import types
for name, value in list(globals().items()):
    if isinstance(value, types.ModuleType) and name not in ("__builtins__", "numpy"):
        del globals()[name]
del name, value`}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := d.RemoveSnapshot(context.Background(), name, client.RemoveOptions{Force: true}); err != nil {
			t.Error(err)
		}
	})
	return name
}

// tags returns the tags of the snapshots that there are.
func (d *daemon) tags(t *testing.T) (tags []string) {
	t.Helper()
	snaps, err := d.Snapshots(limited(t, patience))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range snaps {
		tags = append(tags, s.Tag)
	}
	return tags
}

// The TypeScript SDK's own tests, which need no daemon.
func TestTypeScriptSDK(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the SDK, which -short leaves out")
	}
	notOnKVM(t, "the tests have no daemon")
	lookPath(t, "node")
	lock, err := os.ReadFile(filepath.Join(typeScriptSDK, "package-lock.json"))
	if err != nil || bytes.Contains(lock, []byte("://")) {
		t.Errorf("package-lock.json names a registry, or cannot be read: %v", err)
	}
	dir := typeScriptBuild(t, t.TempDir())
	npm(t, dir, "test")
}

// runSDK runs a program that finds the shared daemon, and returns what it wrote. It
// must end well.
func runSDK(t *testing.T, d *daemon, env []string, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(withoutForkd(), "PYTHONDONTWRITEBYTECODE=1", "FORKD_URL="+d.tcp, "FORKD_TAG="+tag)
	if path, err := filepath.Abs(pythonSDK); err == nil {
		cmd.Env = append(cmd.Env, "PYTHONPATH="+path)
	}
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// withoutForkd returns the environment without what would lead to another daemon.
func withoutForkd() []string {
	return slices.DeleteFunc(os.Environ(), func(setting string) bool { return strings.HasPrefix(setting, "FORKD_") })
}

func caseNames(t *testing.T) (names []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(conformance, "cases.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct{ Name string }
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		names = append(names, c.Name)
	}
	if sorted := slices.Sorted(slices.Values(names)); len(names) == 0 || len(slices.Compact(sorted)) != len(names) {
		t.Fatalf("the table has no cases, or two of a name: %q", names)
	}
	return names
}

// examples returns the blocks of a language in the README in a directory.
func examples(t *testing.T, dir, language string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllSubmatch(text, -1) {
		blocks = append(blocks, string(match[1]))
	}
	if len(blocks) == 0 {
		t.Fatalf("the README in %s has no examples", dir)
	}
	return blocks
}

// compileExample checks the types of a TypeScript program and makes the JavaScript
// program beside it.
func compileExample(t *testing.T, sdk, source string) {
	t.Helper()
	config, err := json.Marshal(map[string]any{
		"compilerOptions": map[string]any{
			"strict": true, "target": "es2022", "module": "nodenext",
			"lib": []string{"es2022", "dom"}, "types": []string{},
		},
		"files": []string{source},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := strings.TrimSuffix(source, ".mts") + ".json"
	if err := os.WriteFile(path, config, 0o600); err != nil {
		t.Fatal(err)
	}
	npm(t, sdk, "exec", "--", "tsc", "-p", path)
}

func lookPath(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("there is no %s on this host: %v", program, err)
	}
	return path
}

// builtTypeScript returns the directory of the TypeScript SDK, built outside of the
// source tree. The build is kept with the homes, and used until its sources change.
func builtTypeScript(t *testing.T) string {
	t.Helper()
	return typeScriptBuild(t, suite.base)
}

func typeScriptBuild(t *testing.T, base string) string {
	t.Helper()
	dir, err := buildTypeScript(t.Context(), base)
	skipWithoutNPM(t, err)
	return dir
}

// skipWithoutNPM ends a test for an error of what uses npm. Without npm, or without the
// registry that it is set up for, there is nothing to test.
func skipWithoutNPM(t *testing.T, err error) {
	t.Helper()
	switch {
	case errors.Is(err, errNoNPM):
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
}

// buildTypeScript returns the directory in base of the TypeScript SDK, built.
func buildTypeScript(ctx context.Context, base string) (dir string, err error) {
	dir = filepath.Join(base, "typescript")
	sum, err := copyTree(typeScriptSDK, dir)
	if err != nil {
		return "", err
	}
	mark := filepath.Join(dir, "dist", "sources")
	if made, err := os.ReadFile(mark); err == nil && string(made) == sum {
		return dir, nil
	}
	if err := runNPM(ctx, dir, "ci", "--no-audit", "--no-fund"); err != nil {
		return "", err
	}
	if err := runNPM(ctx, dir, "run", "build"); err != nil {
		return "", err
	}
	return dir, os.WriteFile(mark, []byte(sum), 0o600)
}

// npm runs npm for a test.
func npm(t *testing.T, dir string, args ...string) {
	t.Helper()
	skipWithoutNPM(t, runNPM(t.Context(), dir, args...))
}

// errNoNPM is wrapped by errors of a host without npm, or without a registry for it.
var errNoNPM = errors.New("npm cannot be used here")

// runNPM runs npm in a directory.
func runNPM(ctx context.Context, dir string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", args...)
	cmd.Dir, cmd.Env = dir, withoutForkd()
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%w: %w", errNoNPM, err)
	}
	for _, sign := range []string{"ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH", "E403", "E502", "E503"} {
		if err != nil && args[0] == "ci" && bytes.Contains(out, []byte(sign)) {
			return fmt.Errorf("%w: the registry does not answer: %w\n%s", errNoNPM, err, out)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}

// copyTree copies the files of a directory that belong to its sources, and returns
// their hash.
func copyTree(from, to string) (sum string, err error) {
	hash := sha256.New()
	err = filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if rel == "node_modules" || rel == "dist" {
				return fs.SkipDir
			}
			if rel != "." { // what was removed from the sources is removed there
				if err := os.RemoveAll(filepath.Join(to, rel)); err != nil {
					return err
				}
			}
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fmt.Fprintf(hash, "%q %d\n%s", rel, len(data), data)
		return os.WriteFile(filepath.Join(to, rel), data, 0o600)
	})
	return hex.EncodeToString(hash.Sum(nil)), err
}
