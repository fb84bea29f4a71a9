package records

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// note is a record.
type note struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

func (n note) Key() string { return n.Name }

func (n note) Check() error {
	if n.Name == "" || strings.ContainsAny(n.Name, "/.") {
		return errors.New("bad name")
	}
	return nil
}

func open(t *testing.T, path string) *Dir[note] {
	t.Helper()
	d, err := Open[note](path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// What was written is there for who opens the directory later, as it was written last.
func TestRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "notes")
	d := open(t, path)
	for _, n := range []note{{"b", "1"}, {"a", "2"}, {"c", "3"}, {"b", "4"}} {
		if err := d.Put(n); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"c", "nobody"} {
		if err := d.Remove(key); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(path, ".tmp-1"), []byte("{"), 0o600); err != nil { // that a crash has left
		t.Fatal(err)
	}
	for what, d := range map[string]*Dir[note]{"who has written them": d, "who comes later": open(t, path)} {
		if all := d.All(); len(all) != 2 || all[0] != (note{"a", "2"}) || all[1] != (note{"b", "4"}) {
			t.Errorf("%s: there are %v", what, all)
		}
		b, ok := d.Get("b")
		if c, found := d.Get("c"); !ok || b.Text != "4" || found {
			t.Errorf("%s: %v, %v", what, b, c)
		}
		found, ok := d.Find(func(n note) bool { return n.Text == "2" })
		if _, other := d.Find(func(n note) bool { return n.Text == "1" }); !ok || found.Name != "a" || other {
			t.Errorf("%s: found is %v", what, found)
		}
	}
	if files, err := os.ReadDir(path); err != nil || len(files) != 2 {
		t.Errorf("in the directory are %v, %v", files, err)
	}
}

// A record that cannot be read is an error that names it, whatever is wrong with it.
func TestDamagedRecord(t *testing.T) {
	for text, words := range map[string]string{
		"{":                        "unexpected end",
		`{"name":"."}`:             "bad name",
		`{"name":"b"}`:             `it is of "b"`,
		strings.Repeat(" ", 1<<21): "too many",
	} {
		path := t.TempDir()
		file := filepath.Join(path, "a.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open[note](path); err == nil || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), file) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}

// What cannot be written is not known, and what was before still is: no record is written that could not be read.
func TestRecordThatCannotBeWritten(t *testing.T) {
	path := t.TempDir()
	d := open(t, path)
	rest := maxSize - len(`{"name":"a","text":""}`+"\n")
	long := note{"a", strings.Repeat("x", rest)}
	if err := d.Put(long); err != nil {
		t.Fatal(err)
	}
	for what, n := range map[string]note{"too many": {"a", long.Text + "x"}, "BUG": {"..", ""}} {
		if err := d.Put(n); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := os.MkdirAll(filepath.Join(path, "b.json", "x"), 0o700); err != nil { // over which no file can be renamed
		t.Fatal(err)
	}
	if err := d.Put(note{"b", ""}); err == nil {
		t.Error("it is written over a directory")
	}
	if err := os.RemoveAll(filepath.Join(path, "b.json")); err != nil {
		t.Fatal(err)
	}
	for _, d := range []*Dir[note]{d, open(t, path)} {
		if all := d.All(); len(all) != 1 || all[0] != long {
			t.Errorf("there are %d records", len(all))
		}
	}
	if files, err := os.ReadDir(path); err != nil || len(files) != 1 {
		t.Errorf("in the directory are %v, %v", files, err)
	}
}
