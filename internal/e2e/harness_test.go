package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
	"github.com/forkd-dev/forkd/internal/hosttest"
	"github.com/forkd-dev/forkd/internal/image/debian"
)

// tag is the snapshot that the tests share.
const tag = "pyagent"

// snapshotRequest is of the snapshot that the tests share. Before it is frozen,
// the parent's generators are drawn from and even seeded, and it leaves a mark on
// its disk and one in its memory.
var snapshotRequest = client.SnapshotRequest{
	Tag:     tag,
	Modules: &[]string{"numpy", "random", "uuid", "ssl", "socket", "tempfile"},
	Setup: [][]string{
		{"sh", "-c", "echo parent > /root/owner; cat /etc/machine-id /proc/sys/kernel/random/boot_id > /root/parent-ids; hostname >> /root/parent-ids"},
	},
	WarmUp: []string{`
import os, random, time, uuid, numpy, ssl
random.seed(1); numpy.random.seed(1)
time.parent_monotonic = time.monotonic()
os.parent_draws = [os.urandom(16).hex(), random.random(), numpy.random.rand(), str(uuid.uuid4()), ssl.RAND_bytes(16).hex()]
`},
}

// suite is what the tests of one run share.
var suite struct {
	prepare, start sync.Once

	base   string // homes and programs
	home   string // the daemon's
	keep   bool   // base outlives the run
	bin    string // the program
	agent  string // hash of the guest's part of it
	daemon *daemon
	skip   string // why there can be no tests
	failed bool   // to prepare
}

func TestMain(m *testing.M) { hosttest.Main(runner{m}, onKVM) }

// runner runs the tests and clears up.
type runner struct{ m *testing.M }

func (r runner) Run() (status int) {
	status = r.m.Run()
	if suite.daemon != nil {
		suite.daemon.stop()
		if report := crash(suite.daemon.log.String()); report != "" {
			fmt.Printf("the daemon failed:\n%s\n", report)
			status = 1
		}
	}
	if suite.base != "" && !suite.keep {
		os.RemoveAll(suite.base)
	}
	return status
}

// preparedHome returns the home of the daemon that the tests share, which need not run.
// The program is built.
func preparedHome(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("boots virtual machines, which -short leaves out")
	}
	firstly(t, &suite.prepare, prepare)
	return suite.home
}

// shared returns the daemon that the tests share, with its snapshot made.
func shared(t *testing.T) *daemon {
	t.Helper()
	home := preparedHome(t)
	firstly(t, &suite.start, func() (err error) {
		if suite.daemon, err = startDaemon(home); err != nil {
			return err
		}
		return makeSnapshot(suite.daemon, snapshotRequest)
	})
	if suite.skip != "" {
		t.Skip(suite.skip)
	}
	return suite.daemon
}

// firstly does once what tests need, which all fail if it does.
func firstly(t *testing.T, once *sync.Once, do func() error) {
	t.Helper()
	once.Do(func() {
		if err := do(); err != nil {
			suite.failed = true
			t.Fatal(err)
		}
	})
	if suite.failed {
		t.Fatal("there is no daemon to test; the first test that failed says why")
	}
}

func prepare() error {
	home, err := "home", error(nil)
	if usesKVM() {
		home, err = kvmHome, useKVM()
	} else if err = makeBase(); err == nil {
		err = build(guestArch())
	}
	if err != nil {
		return err
	}
	suite.home = filepath.Join(suite.base, home)
	for _, dir := range []string{"cache", "images"} { // which other homes get from it
		if err := os.MkdirAll(filepath.Join(suite.home, dir), 0o700); err != nil {
			return err
		}
	}
	// What a test that fails leaves behind does not stay for long.
	return os.Setenv("FORKD_CELL_ALONE", "2m")
}

// makeBase chooses the directory for homes and programs.
func makeBase() (err error) {
	if suite.base = os.Getenv("FORKD_TEST_HOME"); suite.base != "" {
		suite.keep = true
		return os.MkdirAll(suite.base, 0o700)
	}
	suite.base, err = os.MkdirTemp("", "forkd-e2e-")
	return err
}

// build builds the program as the Makefile does, without writing into the source
// tree, with an agent for guests of an ISA.
func build(isa string) error {
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	if err := noteSources(root); err != nil {
		return err
	}
	agent := filepath.Join(suite.base, "forkd-agent."+isa)
	overlay := filepath.Join(suite.base, "overlay.json")
	suite.bin = filepath.Join(suite.base, "forkd")
	text, _ := json.Marshal(map[string]any{"Replace": map[string]string{
		filepath.Join(root, "cmd/forkd/guest/forkd-agent."+isa): agent,
	}})
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		return err
	}
	host := []string{"-overlay", overlay, "-ldflags=-X main.version=e2e", "-o", suite.bin, "./cmd/forkd"}
	hostEnv := "CGO_ENABLED=0"
	if os.Getenv("FORKD_TEST_RACE") != "" {
		host, hostEnv = append([]string{"-race"}, host...), "CGO_ENABLED=1"
	}
	for _, step := range []struct{ env, args []string }{
		{[]string{"GOOS=linux", "GOARCH=" + isa, "CGO_ENABLED=0"}, []string{"-buildvcs=false", "-ldflags=-s -w", "-o", agent, "./cmd/forkd-agent"}},
		{[]string{hostEnv}, host},
	} {
		cmd := exec.Command("go", append([]string{"build", "-trimpath"}, step.args...)...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), step.env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", cmd, err, out)
		}
	}
	program, err := os.ReadFile(agent)
	sum := sha256.Sum256(program)
	suite.agent = hex.EncodeToString(sum[:])
	return err
}

// noteSources looks at all sources, so that "go test" knows that a result is
// stale when one of them has changed: it cannot see what "go build" reads.
func noteSources(root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != root {
			return fs.SkipDir
		}
		if ext := filepath.Ext(path); ext == ".go" || ext == ".py" || ext == ".s" {
			os.Stat(path)
		}
		return nil
	})
}

// makeSnapshot makes a snapshot that outlives this run, unless a run before this
// one has left it, made by the same agent from the same request.
func makeSnapshot(d *daemon, req client.SnapshotRequest) error {
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute*slowness)
	defer cancel()
	request, err := json.Marshal(req)
	if err != nil {
		return err
	}
	keyFile, key := filepath.Join(d.home, "e2e-key"), suite.agent+string(request)
	if have, err := d.Snapshot(ctx, req.Tag); err == nil {
		if made, _ := os.ReadFile(keyFile); string(made) == key && have.Bootable {
			return nil
		}
		if _, err := d.RemoveSnapshot(ctx, req.Tag, client.RemoveOptions{}); err != nil {
			return err
		}
	}
	os.Remove(keyFile)
	start := time.Now()
	if _, err := d.CreateSnapshot(ctx, req, nil); err != nil {
		if unreachable := probeMirror(); unreachable != nil {
			suite.skip = fmt.Sprintf("no Debian mirror to make a snapshot from: %v", unreachable)
			return nil
		}
		return fmt.Errorf("making the snapshot: %w", err)
	}
	fmt.Printf("snapshot made in %s\n", time.Since(start).Round(time.Second))
	return os.WriteFile(keyFile, []byte(key), 0o600)
}

// probeMirror tells why the Debian mirror cannot be used; nil if it can.
func probeMirror() error {
	mirror, err := debian.FindMirror("", os.Getenv, os.DirFS("/etc/apt"))
	if err != nil {
		return err
	}
	get := http.Client{Timeout: 20 * time.Second}
	resp, err := get.Get(mirror + "/dists/trixie/InRelease")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		return errors.Join(err, errors.New("the mirror answers "+resp.Status))
	}
	return nil
}

// fork makes children that end with the test.
func (d *daemon) fork(t *testing.T, n int) []string {
	t.Helper()
	return d.forkWith(t, client.ForkRequest{SnapshotTag: tag, N: &n})
}

func (d *daemon) forkWith(t *testing.T, req client.ForkRequest) []string {
	t.Helper()
	boxes, failed, err := d.Fork(limited(t, patience), req)
	if err != nil {
		t.Fatalf("fork: %v", err)
	}
	var ids []string
	for _, box := range boxes {
		ids = append(ids, box.ID)
	}
	t.Cleanup(func() { d.killAll(ids) })
	want := 1
	if req.N != nil {
		want = *req.N
	}
	if len(failed) > 0 || len(ids) != want {
		t.Fatalf("fork of %d made %d children; errors: %v", want, len(ids), failed)
	}
	if slices.Sort(ids); len(slices.Compact(slices.Clone(ids))) != want {
		t.Fatalf("ids repeat: %v", ids)
	}
	return ids
}

// killAll ends sandboxes, in a cleanup too, when a test's own context is over.
func (d *daemon) killAll(ids []string) {
	for _, id := range ids {
		d.Kill(context.Background(), id)
	}
}

// eval evaluates code that must not raise.
func (d *daemon) eval(t *testing.T, id, code string) *client.EvalResult {
	t.Helper()
	out, err := d.Eval(limited(t, patience), id, client.EvalRequest{Code: code})
	if err != nil {
		t.Fatalf("eval in %s: %v", id, err)
	}
	if out.Error != nil {
		t.Fatalf("eval in %s raised %s: %s\n%s", id, out.Error.Type, out.Error.Message, out.Error.Traceback)
	}
	return out
}

// value evaluates an expression and decodes its value.
func value[T any](t *testing.T, d *daemon, id, code string) (v T) {
	t.Helper()
	out := d.eval(t, id, code)
	if err := json.Unmarshal(out.Value, &v); err != nil {
		t.Fatalf("eval in %s: value %q: %v", id, out.Value, err)
	}
	return v
}

// sh runs a shell script that must succeed, and returns what it printed.
func (d *daemon) sh(t *testing.T, id, script string) string {
	t.Helper()
	out, err := d.Exec(limited(t, patience), id, client.ExecRequest{Args: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatalf("%q in %s: %v", script, id, err)
	}
	if out.ExitCode != 0 {
		t.Fatalf("%q in %s: exit status %d\n%s%s", script, id, out.ExitCode, out.Stdout, out.Stderr)
	}
	return out.Stdout
}

// limited returns a context that ends with the test, or after d.
func limited(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// each calls f for every element, for several at a time.
func each[T any](all []T, f func(i int, v T)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	for i, v := range all {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f(i, v)
		})
	}
	wg.Wait()
}

// eventually waits until done reports true.
func eventually(t *testing.T, limit time.Duration, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after %s still not: %s", limit, what)
		}
	}
}

// wantCode checks that err is the daemon's, with a code, and that its message or
// hint has all of some words.
func wantCode(t *testing.T, err error, code string, words ...string) {
	t.Helper()
	var e *client.Error
	if !errors.As(err, &e) || string(e.Code) != code {
		t.Errorf("error %v (%T), want one with code %s", err, err, code)
		return
	}
	for _, word := range words {
		if !strings.Contains(e.Message+"\n"+e.Hint, word) {
			t.Errorf("error %q (hint %q) does not have %q", e.Message, e.Hint, word)
		}
	}
}
