package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestCorruptFiles(t *testing.T) {
	w := newWorld(t)
	img := w.build(t, Options{})
	for _, name := range []string{kernelName, rootfsName, initramfsName, manifestName} {
		for how, damage := range map[string]func(path string) error{
			"missing": os.Remove,
			"cut":     func(path string) error { return os.Truncate(path, 100) },
			"changed": func(path string) error {
				data, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				data[len(data)/2] ^= 0x40
				return os.WriteFile(path, data, 0o644)
			},
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				path := filepath.Join(img.Dir, name)
				if err := damage(path); err != nil {
					t.Fatal(err)
				}
				_, err := Open(w.home, img.Key)
				if name == manifestName && how == "changed" {
					// Any byte may have been hit, so only that it does not pass counts.
					if err == nil {
						err = img.Verify(context.Background())
					}
				} else {
					var corrupt *CorruptError
					if !errors.As(err, &corrupt) || corrupt.File != path || corrupt.Hint() == "" {
						t.Fatalf("opening: %v", err)
					}
					if images, err := List(w.home); len(images) != 0 || !errors.As(err, &corrupt) {
						t.Errorf("listed %d images, %v", len(images), err)
					}
				}
				var notice string
				again := w.build(t, Options{Refresh: true, Progress: func(p Progress) {
					if p.Notice {
						notice += p.Detail
					}
				}})
				if verr := again.Verify(context.Background()); verr != nil {
					t.Errorf("the image built again: %v", verr)
				}
				if err != nil && !strings.Contains(notice, path) {
					t.Errorf("notice %q does not name %s", notice, path)
				}
			})
		}
	}
}

func TestOpenHashesWhenTimesDiffer(t *testing.T) {
	w := newWorld(t)
	img := w.build(t, Options{})
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(img.RootfsPath(), later, later); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(w.home, img.Key); err != nil {
		t.Errorf("an untouched copy does not open: %v", err)
	}
	// The same size and time, other contents: the price of not hashing always.
	data, _ := os.ReadFile(img.KernelPath())
	st, _ := os.Stat(img.KernelPath())
	data[100] ^= 1
	if err := os.WriteFile(img.KernelPath(), data, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(img.KernelPath(), st.ModTime(), st.ModTime()); err != nil {
		t.Fatal(err)
	}
	same, err := Open(w.home, img.Key)
	if err != nil {
		t.Fatal(err)
	}
	var corrupt *CorruptError
	if err := same.Verify(context.Background()); !errors.As(err, &corrupt) || corrupt.File != img.KernelPath() {
		t.Errorf("verify: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	w := newWorld(t)
	img := w.build(t, Options{})
	for _, key := range []string{"", "..", "../images/" + img.Key, strings.ToUpper(img.Key), img.Key[:31], strings.Repeat("0", 32)} {
		if _, err := Open(w.home, key); !errors.Is(err, ErrNotExist) {
			t.Errorf("key %q: %v", key, err)
		}
		if err := Remove(context.Background(), w.home, key); !errors.Is(err, ErrNotExist) {
			t.Errorf("removing key %q: %v", key, err)
		}
	}
	path := filepath.Join(img.Dir, manifestName)
	for name, change := range map[string]func(*Manifest){
		"another format": func(m *Manifest) { m.Format++ },
		"another key":    func(m *Manifest) { m.Key = strings.Repeat("0", 32) },
		"a file less":    func(m *Manifest) { m.Files = map[string]Record{kernelName: m.Files[kernelName]} },
		"a file more": func(m *Manifest) {
			m.Files = map[string]Record{kernelName: {}, rootfsName: {}, initramfsName: {}, "../x": {}}
		},
		"modules length": func(m *Manifest) { m.ModulesLen = 1 << 40 },
	} {
		m := img.Manifest
		change(&m)
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(w.home, img.Key); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
}

func FuzzManifest(f *testing.F) {
	w := newWorld(f)
	img := w.build(f, Options{})
	path := filepath.Join(img.Dir, manifestName)
	text, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(fmt.Sprintf(`{"format": %d}`, formatVersion)))
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := Open(w.home, img.Key); err == nil && (got.Key != img.Key || len(got.Files) != 3) {
			t.Fatalf("opened %+v", got.Manifest)
		}
	})
}
