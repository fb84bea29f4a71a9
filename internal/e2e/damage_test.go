package e2e

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/client"
)

// damages are ways in which a file comes to harm; each makes a bad one at path.
var damages = map[string]func(good, path string) error{
	"missing": func(string, string) error { return nil },
	"empty":   func(_, path string) error { return os.WriteFile(path, nil, 0o600) },
	"short": func(good, path string) error {
		return damage(good, path, func(b []byte) []byte { return b[:len(b)*9/10] })
	},
	"long": func(good, path string) error {
		return damage(good, path, func(b []byte) []byte { return append(b, 0) })
	},
	"hole": func(good, path string) error {
		return damage(good, path, func(b []byte) []byte { clear(middle(b)); return b })
	},
	"garbage":     func(good, path string) error { return damage(good, path, scramble) },
	"a directory": func(_, path string) error { return os.Mkdir(path, 0o700) },
}

func middle(b []byte) []byte { return b[len(b)/3 : min(len(b)/3+64<<10, len(b)*2/3)] }

func scramble(b []byte) []byte {
	for i := range middle(b) {
		middle(b)[i] ^= byte(i) | 0x80
	}
	return b
}

func damage(good, path string, change func([]byte) []byte) error {
	text, err := os.ReadFile(good)
	if err != nil {
		return err
	}
	return os.WriteFile(path, change(text), 0o600)
}

// Files that were damaged while nothing ran from them are refused by name, and
// the snapshot is good again once they are whole (field case 181).
func TestDamagedSnapshotIsRefusedNamingTheFile(t *testing.T) {
	d := serve(t, cloneHome(t))
	own := filepath.Join(d.home, "snapshots", tag)
	paths := append(d.filesUnder(t, "layers"),
		filepath.Join(own, "state.bin"), filepath.Join(own, "manifest.json"), filepath.Join(own, "rootfs.erofs"))
	for _, path := range paths {
		for name, harm := range damages {
			t.Run(name+" "+filepath.Ext(path), func(t *testing.T) {
				good := filepath.Join(d.home, "good")
				if err := os.Rename(path, good); err != nil {
					t.Fatal(err)
				}
				if err := harm(good, path); err != nil {
					t.Fatal(err)
				}
				checkRefused(t, d, path, name)
				os.RemoveAll(path)
				if err := os.Rename(good, path); err != nil {
					t.Fatal(err)
				}
				if _, err := d.VerifySnapshot(limited(t, patience), tag, nil); err != nil {
					t.Errorf("verifying what is whole again: %v", err)
				}
			})
		}
	}
	if got := value[int](t, d, d.fork(t, 1)[0], "2 ** 10"); got != 1024 {
		t.Errorf("2 ** 10 = %d", got)
	}
}

// checkRefused looks for a damage where it must be found. Page data and the root
// image are not read for a fork: that they differ is for verifying to find, and
// thereafter nothing is forked.
func checkRefused(t *testing.T, d *daemon, path, damage string) {
	t.Helper()
	name := filepath.Base(path)
	fork := func() error {
		_, _, err := d.Fork(limited(t, patience), client.ForkRequest{SnapshotTag: tag})
		return err
	}
	deep := (damage == "hole" || damage == "garbage") && !strings.HasSuffix(name, ".bin") && !strings.HasSuffix(name, ".json")
	if !deep {
		wantCode(t, fork(), "not_bootable", name, "forkd rmi "+tag)
	}
	_, err := d.VerifySnapshot(limited(t, patience), tag, nil)
	wantCode(t, err, "not_bootable", name)
	wantCode(t, fork(), "not_bootable", name, "forkd rmi "+tag)
	list, err := d.Snapshots(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("the list is %v, %v", list, err)
	}
	if list[0].Bootable || !strings.Contains(list[0].Warning, name) {
		t.Errorf("the list says bootable %v, and warns: %s", list[0].Bootable, list[0].Warning)
	}
}

// A snapshot that cannot be opened can be removed, also one with files that are
// not its own, and the name is free again.
func TestDamagedSnapshotCanBeRemoved(t *testing.T) {
	home := cloneHome(t)
	own := filepath.Join(home, "snapshots", tag)
	ownFile(t, filepath.Join(own, "manifest.json"))
	if err := os.WriteFile(filepath.Join(own, "manifest.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(own, "extra"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"snapshots/.tmp-crashed", "snapshots/not a tag", "snapshots/empty"} {
		if err := os.Mkdir(filepath.Join(home, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	d := serve(t, home)
	list, err := d.Snapshots(t.Context())
	tags := make(map[string]bool)
	for _, s := range list {
		tags[s.Tag] = true
		if s.Bootable || s.Warning == "" {
			t.Errorf("listed as good: %+v", s)
		}
	}
	if err != nil || len(tags) != 2 || !tags[tag] || !tags["empty"] {
		t.Fatalf("the list is %+v, %v", list, err)
	}
	out, err := forkd(home, "rmi", tag, "empty").CombinedOutput()
	if err != nil {
		t.Errorf("rmi: %v\n%s", err, out)
	}
	left := d.filesUnder(t, "snapshots", "layers")
	if len(left) != 0 {
		t.Errorf("files were left: %q", left)
	}
}

// Cutting the file under running children's memory is beyond repair for them, but
// the daemon lives, says so, and serves the others (field case 009).
func TestMemoryFileCutUnderRunningChildren(t *testing.T) {
	home := cloneHome(t)
	memory := slices.MaxFunc((&daemon{home: home}).filesUnder(t, "layers"), func(a, b string) int {
		return int(fileSize(t, a) - fileSize(t, b))
	})
	ownFile(t, memory)
	d := serve(t, home)
	ids := d.fork(t, 3)
	d.eval(t, ids[0], "x = 1")
	if err := os.Truncate(memory, 0); err != nil {
		t.Fatal(err)
	}
	_, _, err := d.Fork(limited(t, patience), client.ForkRequest{SnapshotTag: tag})
	wantCode(t, err, "not_bootable", filepath.Base(memory))
	for _, id := range ids {
		if _, err := d.Exec(limited(t, patience), id, client.ExecRequest{Args: []string{"find", "/usr/bin"}}); err != nil {
			wantCode(t, err, "sandbox_dead", id)
		}
	}
	if d.ended() {
		t.Fatalf("the daemon died:\n%s", d.log.String())
	}
	if err := d.Health(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := d.RemoveSnapshot(t.Context(), tag, client.RemoveOptions{Force: true}); err != nil {
		t.Errorf("removing it: %v", err)
	}
}

func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// A download that has rotted in the cache is fetched again or refused, never
// used. Without a mirror it cannot be fetched, so here it must be refused.
func TestDamagedImageIsNotUsed(t *testing.T) {
	home := cloneHome(t)
	for _, path := range (&daemon{home: home}).filesUnder(t, "images") {
		if filepath.Base(path) != "kernel" {
			continue
		}
		ownFile(t, path)
		if err := damage(path, path, scramble); err != nil {
			t.Fatal(err)
		}
	}
	d := serve(t, home)
	var log bytes.Buffer
	req := client.SnapshotRequest{Tag: "again", Runtime: "none", MemoryMiB: client.Ptr(256), Mirror: "http://127.0.0.1:1"}
	_, err := d.CreateSnapshot(limited(t, patience), req, func(p client.Progress) { io.WriteString(&log, p.Step+" ") })
	if err == nil || strings.Contains(log.String(), "boot") {
		t.Errorf("a damaged kernel was booted: %v (%s)", err, log.String())
	}
}
