package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// e2bSuite is where the programs lie that use E2B's packages.
const e2bSuite = "../../conformance/e2b"

// e2bKey is the daemon's token: E2B's packages send only keys of this form.
const e2bKey = "e2b_0123456789abcdef0123456789abcdef01234567"

// e2bRequest is of the snapshot that E2B's default templates stand for.
var e2bRequest = client.SnapshotRequest{
	Tag:      tag,
	Packages: []string{"nodejs", "python3-matplotlib"},
	Modules:  &[]string{"numpy", "matplotlib.pyplot"},
}

var e2bGenerations = []string{"old", "new"}

// TestE2BPackages drives the official packages of E2B, as they are published,
// against a daemon: every test of the suite, with two generations of them. Each file of
// it can be chosen, as -run TestE2BPackages/new/commands.
//
// field case 133
func TestE2BPackages(t *testing.T) {
	d := e2bDaemon(t)
	for _, generation := range e2bGenerations {
		t.Run(generation, func(t *testing.T) {
			dir, err := installE2B(t.Context(), suite.base, generation)
			skipWithoutNPM(t, err)
			files, err := filepath.Glob(filepath.Join(dir, "*.test.mjs"))
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			t.Cleanup(func() {
				fmt.Printf("E2B's %s packages took %s\n", generation, time.Since(start).Round(100*time.Millisecond))
			})
			for _, file := range files {
				t.Run(e2bSubject(file), func(t *testing.T) {
					t.Parallel()
					runE2B(t, d, file)
				})
			}
		})
	}
}

// e2bDaemon starts a daemon whose default snapshot has what E2B's templates have.
func e2bDaemon(t *testing.T) *daemon {
	t.Helper()
	from := preparedHome(t)
	home := filepath.Join(suite.base, "e2b")
	if _, err := os.Stat(home); err != nil {
		if err := linkHome(from, home, "cache", "images"); err != nil {
			t.Fatal(err)
		}
	}
	d := serve(t, home, "FORKD_TOKEN="+e2bKey)
	if err := makeSnapshot(d, e2bRequest); err != nil {
		t.Fatal(err)
	}
	if suite.skip != "" {
		t.Skip(suite.skip)
	}
	return d
}

// installE2B makes a directory in base with the suite and a generation of the packages,
// in the versions that its lock file pins. The error wraps errNoNPM if they cannot be
// had here.
func installE2B(ctx context.Context, base, generation string) (dir string, err error) {
	dir = filepath.Join(base, "e2b-packages", generation)
	files, err := filepath.Glob(filepath.Join(e2bSuite, "*.*"))
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("no suite in %s: %v", e2bSuite, err)
	}
	from := filepath.Join(e2bSuite, generation)
	for _, name := range []string{"package.json", "package-lock.json"} {
		files = append(files, filepath.Join(from, name))
	}
	old, _ := os.ReadFile(filepath.Join(dir, "package-lock.json"))
	lock, err := os.ReadFile(filepath.Join(from, "package-lock.json"))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules/e2b")); err != nil || !bytes.Equal(old, lock) {
		if err := errors.Join(os.RemoveAll(dir), os.CopyFS(dir, os.DirFS(from))); err != nil {
			return "", err
		}
		if err := runNPM(ctx, dir, "ci", "--no-audit", "--no-fund", "--ignore-scripts"); err != nil {
			return "", errors.Join(err, os.RemoveAll(dir))
		}
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o600)
		}
		if err != nil {
			return "", err
		}
	}
	return dir, nil
}

// e2bResult is a line of the suite's report.
type e2bResult struct {
	Name        string
	Skip, Error *string
	MS          int
}

// runE2B runs a file of the suite and makes each of its tests one of t's.
func runE2B(t *testing.T, d *daemon, file string) {
	t.Helper()
	page, err := filepath.Abs("../../docs/e2b.md")
	if err != nil {
		t.Fatal(err)
	}
	// The packages leave timers of requests that are over, which would keep the process.
	cmd := exec.CommandContext(limited(t, 10*time.Minute*slowness), "node", "--test-force-exit", "--test-reporter=./reporter.mjs", file)
	cmd.Dir = filepath.Dir(file)
	cmd.Env = append(os.Environ(), "E2B_API_URL="+d.tcp, "E2B_SANDBOX_URL="+d.tcp, "E2B_API_KEY="+e2bKey,
		"E2B_COMPATIBILITY_PAGE="+page, fmt.Sprintf("E2B_SLOWNESS=%d", slowness))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	ran, err := reportE2B(t, json.NewDecoder(out))
	if err != nil {
		cmd.Process.Kill()
	}
	if err = errors.Join(err, cmd.Wait()); err != nil && !t.Failed() {
		t.Errorf("the tests failed: %v\n%s", err, stderr.String())
	}
	for _, name := range e2bTestNames(t)[e2bSubject(file)] {
		if !slices.ContainsFunc(ran, name.MatchString) {
			t.Errorf("no test %s ran: %v\n%s", name, err, stderr.String())
		}
	}
}

// reportE2B makes each test that a report tells of one of t's, and returns their names.
func reportE2B(t *testing.T, report *json.Decoder) (ran []string, err error) {
	t.Helper()
	for {
		var r e2bResult
		if err := report.Decode(&r); err == io.EOF {
			return ran, nil
		} else if err != nil {
			return ran, fmt.Errorf("reading the report: %w", err)
		}
		ran = append(ran, r.Name)
		t.Run(r.Name, func(t *testing.T) {
			switch {
			case r.Error != nil:
				t.Errorf("after %d ms: %s", r.MS, *r.Error)
			case r.Skip != nil:
				t.Skip(*r.Skip)
			}
		})
	}
}
