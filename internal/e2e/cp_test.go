package e2e

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/client"
)

// forkd cp takes a directory into a sandbox and out of another one that was forked from it.
func TestCopyOfADirectory(t *testing.T) {
	d := shared(t)
	id := d.fork(t, 1)[0]
	from := filepath.Join(t.TempDir(), "tree")
	if err := os.MkdirAll(filepath.Join(from, "sub dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"run": 0o755, "sub dir/-n": 0o600, "sub dir/\xff": 0o644} {
		if err := os.WriteFile(filepath.Join(from, name), []byte("#!/bin/sh\necho ran "+name+"\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(from, "large"), make([]byte, 20<<20+1), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"link": "sub dir/-n", "sub dir/up": "..", "raw \xff": "\xfe\n"} {
		if err := os.Symlink(target, filepath.Join(from, name)); err != nil {
			t.Fatal(err)
		}
	}
	cp := func(from, to string) {
		t.Helper()
		if out, err := forkd(d.home, "cp", from, to).CombinedOutput(); err != nil {
			t.Fatalf("forkd cp %s %s: %v\n%s", from, to, err, out)
		}
	}
	cp(from, id+":/srv")
	if got := d.sh(t, id, "cd /srv/tree && ./run && readlink link 'sub dir/up' && stat -c '%a %s' 'sub dir/-n' large"); got != "ran run\nsub dir/-n\n..\n600 30\n644 20971521\n" {
		t.Errorf("in the sandbox: %q", got)
	}
	back := t.TempDir()
	cp(id+":/srv/tree", back)
	out, err := exec.Command("diff", "-r", "--no-dereference", from, filepath.Join(back, "tree")).CombinedOutput()
	if err != nil {
		t.Errorf("what comes back differs: %v\n%s", err, out)
	}
	for _, name := range []string{"run", "sub dir/-n"} {
		was, err := os.Stat(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		is, err := os.Stat(filepath.Join(back, "tree", name))
		if err != nil || is.Mode() != was.Mode() {
			t.Errorf("%s: %v, %v; want %v", name, is, err, was.Mode())
		}
	}
	// A link replaces a link, but no directory, and makes none in it; and no permission at all is one, too.
	onto := filepath.Join(t.TempDir(), "onto")
	if err := errors.Join(os.Mkdir(onto, 0o755), os.Symlink("there", filepath.Join(onto, "link"))); err != nil {
		t.Fatal(err)
	}
	d.sh(t, id, "mkdir -p /srv/links/link /srv/dir && ln -s /srv/dir /srv/links/l")
	out, err = forkd(d.home, "cp", onto+"/.", id+":/srv/links").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "making the link /srv/links/link: ") {
		t.Errorf("a link onto a directory: %v\n%s", err, out)
	}
	if err := os.Rename(filepath.Join(onto, "link"), filepath.Join(onto, "l")); err != nil {
		t.Fatal(err)
	}
	cp(onto+"/.", id+":/srv/links")
	d.write(t, id, "/srv/none", "x", client.WriteOptions{Mode: new(fs.FileMode(0))})
	if got := d.sh(t, id, "ls -A /srv/links/link /srv/dir; readlink /srv/links/l; stat -c %a /srv/none"); got != "/srv/dir:\n\n/srv/links/link:\nthere\n0\n" {
		t.Errorf("links and modes: %q", got)
	}
	// To where there is no directory, and from a sandbox that ends meanwhile.
	out, err = forkd(d.home, "cp", from, id+":/nowhere/tree").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "there is no directory /nowhere in sandbox "+id) {
		t.Errorf("to where there is no directory: %v\n%s", err, out)
	}
	killed := d.fork(t, 1)[0]
	d.sh(t, killed, "truncate -s 1G /root/large")
	out, err = killDuringCopy(t, d, killed, "/root/large", t.TempDir())
	if err == nil || !strings.Contains(string(out), "any more: it was killed") {
		t.Errorf("from a sandbox that is killed: %v\n%s", err, out)
	}
	// Into a disk without room.
	d.sh(t, id, "mkdir /mnt/small && mount -t tmpfs -o size=1m none /mnt/small")
	out, err = forkd(d.home, "cp", filepath.Join(from, "large"), id+":/mnt/small/").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "No space left") && !strings.Contains(string(out), "no space left") {
		t.Errorf("onto a full disk: %v\n%s", err, out)
	}
	if got := d.sh(t, id, "ls -A /mnt/small"); got != "" {
		t.Errorf("half a file is left: %q", got)
	}
}

// killDuringCopy kills a sandbox when the first bytes of a file have come out of it.
func killDuringCopy(t *testing.T, d *daemon, id, from, to string) ([]byte, error) {
	t.Helper()
	pipe := filepath.Join(to, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := forkd(d.home, "cp", id+":"+from, pipe)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	file, err := os.Open(pipe)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := d.Kill(limited(t, patience), id); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, file) // until the command has ended
	err = cmd.Wait()
	return said.Bytes(), err
}
