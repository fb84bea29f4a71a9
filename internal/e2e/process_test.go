package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// daemon is a running "forkd serve" and a client on its Unix socket.
type daemon struct {
	*client.Client
	home string
	tcp  string // URL
	cmd  *exec.Cmd
	log  lockedBuffer
	done chan struct{} // closed when the process has ended
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// forkd returns a command of the program, without settings of whoever runs the
// tests but the mirror.
func forkd(home string, args ...string) *exec.Cmd {
	cmd := exec.Command(suite.bin, args...)
	for _, setting := range os.Environ() {
		if name, _, _ := strings.Cut(setting, "="); !strings.HasPrefix(name, "FORKD_") || name == "FORKD_DEBIAN_MIRROR" {
			cmd.Env = append(cmd.Env, setting)
		}
	}
	cmd.Env = append(cmd.Env, "FORKD_HOME="+home, "FORKD_ENGINE="+engineName())
	return cmd
}

// startDaemon starts a daemon on a free port, with more settings for its
// environment, and waits until it serves.
func startDaemon(home string, settings ...string) (*daemon, error) {
	d := &daemon{home: home, done: make(chan struct{})}
	d.cmd = forkd(home, "serve", "--json", "--listen", "127.0.0.1:0")
	d.cmd.Env = append(d.cmd.Env, settings...)
	d.cmd.Stderr = &d.log
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		d.cmd.Wait()
		close(d.done)
	}()
	for deadline := time.Now().Add(patience); d.tcp == ""; time.Sleep(10 * time.Millisecond) {
		d.tcp = servingAt(d.log.String())
		if d.ended() || time.Now().After(deadline) {
			d.kill()
			return nil, fmt.Errorf("the daemon does not serve:\n%s", d.log.String())
		}
	}
	var err error
	d.Client, err = client.New(client.Config{URL: "unix://" + client.Socket(home)})
	return d, err
}

var portPattern = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// servingAt finds in a log where the daemon serves, once it does.
func servingAt(log string) string {
	for line := range strings.Lines(log) {
		var entry struct{ Msg, Addresses string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "serving" {
			return "http://" + portPattern.FindString(entry.Addresses)
		}
	}
	return ""
}

func (d *daemon) ended() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// kill ends the daemon and the processes of its machines, as the end of the host would.
func (d *daemon) kill() {
	d.killAlone()
	for _, pid := range d.cells() {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

// killAlone ends the daemon as a crash would.
func (d *daemon) killAlone() {
	d.cmd.Process.Kill()
	<-d.done
}

// cells returns the processes of machines, by name.
func (d *daemon) cells() map[string]int {
	cells := make(map[string]int)
	records, _ := filepath.Glob(filepath.Join(d.home, "cells", "*.json"))
	for _, path := range records {
		var r struct {
			Name string
			PID  int
		}
		text, err := os.ReadFile(path)
		if err == nil && json.Unmarshal(text, &r) == nil && r.PID > 1 {
			cells[r.Name] = r.PID
		}
	}
	return cells
}

// stop ends the daemon as an operator would.
func (d *daemon) stop() {
	d.cmd.Process.Signal(os.Interrupt)
	select {
	case <-d.done:
	case <-time.After(30 * time.Second):
		d.kill()
	}
}

// serve starts a daemon in a home, for the time of a test.
func serve(t *testing.T, home string, settings ...string) *daemon {
	t.Helper()
	d, err := startDaemon(home, settings...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.stop()
		log := d.log.String()
		if report := crash(log); report != "" {
			t.Errorf("the daemon failed:\n%s", report)
		}
		if t.Failed() {
			t.Logf("the daemon's log ends with:\n%s", log[max(0, len(log)-2000):])
		}
	})
	return d
}

// crash returns what a log has from a failure of the daemon on; no test may cause
// one.
func crash(log string) string {
	for _, sign := range []string{"WARNING: DATA RACE", "panic:", "fatal error:", "BUG:", "panic serving"} {
		if _, report, found := strings.Cut(log, sign); found {
			return fmt.Sprintf("%s%.6000s", sign, report)
		}
	}
	return ""
}

// cloneHome makes a home with the image and the snapshot of the shared one. The
// files are hard links, so a test must give itself those that it damages in
// place (see ownFile).
func cloneHome(t *testing.T) string {
	t.Helper()
	from := shared(t).home
	to, err := os.MkdirTemp(suite.base, "clone-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(to) })
	if err := linkHome(from, to, "cache", "images", "snapshots", "layers"); err != nil {
		t.Fatal(err)
	}
	return to
}

// linkHome makes some directories of a home those of another, by hard links.
func linkHome(from, to string, dirs ...string) error {
	for _, dir := range dirs {
		err := filepath.Walk(filepath.Join(from, dir), func(path string, info os.FileInfo, err error) error {
			if err != nil {
				return err
			}
			target := filepath.Join(to, strings.TrimPrefix(path, from))
			if info.IsDir() {
				return os.MkdirAll(target, 0o700)
			}
			return os.Link(path, target)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ownFile replaces a hard link by a copy.
func ownFile(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = errors.Join(os.Remove(path), os.WriteFile(path, text, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// filesUnder returns the paths under directories of a home.
func (d *daemon) filesUnder(t *testing.T, dirs ...string) (paths []string) {
	t.Helper()
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join(d.home, dir), func(path string, entry os.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				paths = append(paths, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

// metric reads one of the daemon's metrics.
func (d *daemon) metric(t *testing.T, name string) int {
	t.Helper()
	text, err := d.Metrics(limited(t, patience))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				t.Fatal(err)
			}
			return int(v)
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
