package journal

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	journalPath = "testdata/journal-v1"
	// most is how many sandboxes there can be.
	most = 3000
	// killed and expired are reasons.
	killed  = "it was killed"
	expired = "its lifetime is over"
)

// A journal that any forkd of this version has written is read, and written as it was.
func TestJournalGolden(t *testing.T) {
	text, err := os.ReadFile(journalPath)
	if err != nil {
		t.Fatal(err)
	}
	l, err := readLedger(text, most)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.lines(); !bytes.Equal(got, text) {
		t.Errorf("written as\n%s", got)
	}
	all := l.sandboxes()
	if len(all) != 3 || all[0].State != Exited || all[0].Reason == "" || all[1].State != "" || all[2].Workspace != "desk" || all[2].PID != 4711 {
		t.Errorf("it tells of %+v", all)
	}
	if got := l.departed.reason("sb000000000001"); got != killed {
		t.Errorf("one was not killed, but %q", got)
	}
	if got, want := l.departed.known["sb000000000006"], (departure{expired, "0a1b2c3d"}); got != want {
		t.Errorf("of one that has gone it tells %+v", got)
	}
}

// startJournal returns the journal of a home in which nothing has ever lived.
func startJournal(path string, log *slog.Logger) *Journal {
	j := Read(path, most, log)
	j.Complete()
	return j
}

// What a journal tells, all lines together.
func TestLedger(t *testing.T) {
	const a, b = "sb00000000000a", "sb00000000000b"
	start := func(ids ...string) *entry { return &entry{Event: began, IDs: ids, Origin: Origin{Tag: "x"}} }
	fall := func(id string) *entry { return &entry{Event: ended, IDs: []string{id}, State: Exited, Reason: "off"} }
	leave := func(id, reason string) *entry { return &entry{Event: gone, IDs: []string{id}, Reason: reason} }
	for name, c := range map[string]struct {
		lines []*entry
		want  string
	}{
		"one that ended":               {[]*entry{start(a), fall(a)}, a + " exited"},
		"one that was not there":       {[]*entry{fall(a), leave(b, "")}, ""},
		"one that was killed after":    {[]*entry{start(a), fall(a), leave(a, "killed"), fall(a)}, a + " killed"},
		"one that was rolled back":     {[]*entry{start(a), fall(a), start(a)}, a + " "},
		"one that nobody will ask for": {[]*entry{start(a), leave(a, "")}, ""},
		"those that ended are first":   {[]*entry{start(a, b), fall(b)}, b + " exited," + a + " "},
	} {
		l := newLedger(most)
		for _, e := range c.lines {
			l.add(e)
		}
		for _, l := range []*ledger{l, again(t, l.lines())} {
			var got []string
			for _, e := range l.departed.entries() {
				got = append(got, e.IDs[0]+" "+e.Reason)
			}
			for _, has := range l.sandboxes() {
				got = append(got, has.ID+" "+string(has.State))
			}
			if strings.Join(got, ",") != c.want {
				t.Errorf("%s: %q", name, got)
			}
		}
	}
}

// again reads what was written.
func again(t *testing.T, text []byte) *ledger {
	t.Helper()
	l, err := readLedger(text, most)
	if err != nil {
		t.Errorf("%s: %v", text, err)
	}
	return l
}

// listen returns what a log says.
func listen() (*slog.Logger, *bytes.Buffer) {
	said := new(bytes.Buffer)
	return slog.New(slog.NewTextHandler(said, nil)), said
}

// TestDamagedJournal: whatever is where a journal should be, a daemon starts, says so, and knows what
// can be read.
func TestDamagedJournal(t *testing.T) {
	text, err := os.ReadFile(journalPath)
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := bytes.Cut(text, []byte("\n"))
	line := func(s string) func(string) error {
		return func(path string) error { return os.WriteFile(path, append(bytes.Clone(text), s...), 0o600) }
	}
	for name, c := range map[string]struct {
		damage func(path string) error
		known  int
		say    string
	}{
		"no damage": {line(""), 3, ""},
		"nothing":   {func(string) error { return nil }, 0, ""},
		"empty":     {func(path string) error { return os.WriteFile(path, nil, 0o600) }, 0, "does not begin"},
		"zeros":     {func(path string) error { return os.WriteFile(path, make([]byte, 4096), 0o600) }, 0, "does not begin"},
		"what it lacks": {func(path string) error {
			return os.WriteFile(path, append([]byte("{\"journal\":0}\n"), body...), 0o600)
		}, 3, "did not know all"},
		"no first line":             {func(path string) error { return os.WriteFile(path, body, 0o600) }, 3, "does not begin"},
		"a damaged first line":      {func(path string) error { return os.WriteFile(path, append([]byte("{\"jour\x00\n"), body...), 0o600) }, 3, "1 lines"},
		"of a later forkd":          {func(path string) error { return os.WriteFile(path, []byte(`{"journal":2}`), 0o600) }, 0, "version 2"},
		"a torn last line":          {line(`{"event":"gone","ids":["sb0000000`), 3, "1 lines"},
		"a bad id":                  {line(`{"event":"began","ids":["../x"],"tag":"x"}`), 3, "bad id"},
		"a bad tag":                 {line(`{"event":"began","ids":["sb00000000000a"],"tag":"../x"}`), 3, "bad tag"},
		"a bad workspace":           {line(`{"event":"began","ids":["sb00000000000a"],"tag":"x","workspace":"/"}`), 3, "bad name"},
		"a disk of no size":         {line(`{"event":"began","ids":["sb00000000000a"],"tag":"x","disk_mib":-1}`), 3, "a disk of -1"},
		"a disk as large as can be": {line(`{"event":"began","ids":["sb00000000000a"],"tag":"x","disk_mib":1048576}`), 4, ""},
		"a disk larger than can be": {line(`{"event":"began","ids":["sb00000000000a"],"tag":"x","disk_mib":1048577}`), 3, "a disk of 1048577"},
		"a bad cell":                {line(`{"event":"gone","ids":["sb000000000002"],"cell":"../x"}`), 3, "bad name"},
		"a bad state":               {line(`{"event":"ended","ids":["sb000000000002"],"state":"running"}`), 3, "bad state"},
		"an unknown event":          {line(`{"event":"forked","ids":["sb00000000000a"]}`), 3, "unknown event"},
		"a long reason":             {line(`{"event":"gone","ids":["sb000000000002"],"reason":"` + strings.Repeat("x", maxReason+1) + `"}`), 3, "a reason of"},
		"one line after a bad":      {line("\n" + `{"event":"gone","ids":["sb000000000002"]}`), 2, "1 lines"},
		"a directory":               {func(path string) error { return os.MkdirAll(filepath.Join(path, "x"), 0o700) }, 0, "regular"},
		"a pipe":                    {func(path string) error { return unix.Mkfifo(path, 0o600) }, 0, "regular"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "journal")
			if err := c.damage(path); err != nil {
				t.Fatal(err)
			}
			log, said := listen()
			j := Read(path, most, log)
			if n := len(j.Sandboxes()); n != c.known {
				t.Errorf("it tells of %d sandboxes", n)
			}
			if got := said.String(); (got == "") != (c.say == "") || !strings.Contains(got, c.say) {
				t.Errorf("the log says %q", got)
			}
			j.Open(nil)
			j.Gone("", "sb000000000003")
			j.Close()
			if st, err := os.Lstat(path); err == nil && !st.Mode().IsRegular() {
				return // it is in the way of another
			}
			if again := Read(path, most, log); again.Whole() != j.Whole() {
				t.Error("the next daemon takes it for whole")
			}
			j = Read(path, most, log)
			j.Open(nil)
			j.Complete()
			j.Close()
			if again := Read(path, most, log); !again.Whole() {
				t.Error("it lacks something although all is known")
			}
		})
	}
}

// A journal tells of no more sandboxes than there can be.
func TestJournalIsBelievedWithinReason(t *testing.T) {
	text := fmt.Appendf(nil, "{\"journal\":1}\n")
	for i := range most + 10 {
		text = fmt.Appendf(text, `{"event":"began","ids":["sb%012x"],"tag":"x"}`+"\n", i)
	}
	if l, err := readLedger(text, most); len(l.listed) != most || err == nil || !strings.Contains(err.Error(), "10 lines") {
		t.Errorf("it tells of %d sandboxes: %v", len(l.listed), err)
	}
}

// TestJournalIsBounded: however long a daemon runs, a journal is no longer than what there is to
// tell allows, and tells all of it.
func TestJournalIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := startJournal(path, slog.New(slog.DiscardHandler))
	j.Open(nil)
	defer j.Close()
	id := func(i int) string { return fmt.Sprintf("sb%012x", i) }
	start := func(i int) *entry { return &entry{Event: began, IDs: []string{id(i)}, Origin: Origin{Tag: "x"}} }
	j.add(start(0))
	longest, rounds := int64(0), 20*growth/(2*maxReason)
	for i := 1; i < rounds; i++ {
		j.add(start(i))
		j.Gone(fmt.Sprint(i, strings.Repeat("x", 2*maxReason)), id(i))
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		longest = max(longest, st.Size())
	}
	if most := int64(growth + 2*maxDepartedText*11/10); longest > most {
		t.Errorf("it was %d bytes long, more than %d", longest, most)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	l := again(t, text)
	if len(l.listed) != 1 || l.departed.reason(id(rounds-1)) == "" || l.departed.reason(id(rounds-maxDepartedText/maxReason-2)) != "" {
		t.Errorf("it tells of %d sandboxes", len(l.listed))
	}
}

// TestJournalThatCannotBeWritten: it is told once, nobody fails for it, and when it can be written
// again it tells all.
func TestJournalThatCannotBeWritten(t *testing.T) {
	for name, fail := range map[string]func(t *testing.T, j *Journal, dir string) (mend func()){
		"from the beginning": func(t *testing.T, j *Journal, dir string) func() {
			os.Mkdir(j.path, 0o700) // over which no file can be renamed
			j.Open(nil)
			return func() { os.Remove(j.path) }
		},
		"when a daemon starts": func(t *testing.T, j *Journal, dir string) func() {
			j.Open(nil)
			j.Close()
			aside := j.path + ".new"
			if err := os.MkdirAll(filepath.Join(aside, "x"), 0o700); err != nil {
				t.Fatal(err)
			}
			j.Open(nil)
			return func() { os.RemoveAll(aside) }
		},
		"later": func(t *testing.T, j *Journal, dir string) func() {
			j.Open(nil)
			j.mu.Lock()
			defer j.mu.Unlock()
			j.file.Close() // as good as a disk that fails
			return func() {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			log, said := listen()
			j := startJournal(filepath.Join(dir, "journal"), log)
			mend := fail(t, j, dir)
			for i := range 3 {
				j.add(&entry{Event: began, IDs: []string{fmt.Sprintf("sb%012x", i)}, Origin: Origin{Tag: "x"}})
			}
			if n := strings.Count(said.String(), "cannot be written"); n != 1 {
				t.Errorf("it is told %d times: %s", n, said)
			}
			if Read(j.path, most, log).Whole() {
				t.Error("a daemon that comes now takes it for whole")
			}
			mend()
			j.mu.Lock()
			j.failing = j.failing.Add(-2 * mendAfter)
			j.mu.Unlock()
			j.Gone(killed, "sb000000000001")
			text, err := os.ReadFile(j.path)
			if err != nil {
				t.Fatal(err)
			}
			if l := again(t, text); len(l.listed) != 2 || l.departed.reason("sb000000000001") != killed {
				t.Errorf("it tells\n%s", text)
			}
			j.Close()
		})
	}
}

// TestJournalThatSomebodyRemoves: whatever is done to the file while a daemon lives, the next one is told of
// all that was there and of what comes.
func TestJournalThatSomebodyRemoves(t *testing.T) {
	for name, do := range map[string]func(path string) error{
		"removed":   os.Remove,
		"moved":     func(path string) error { return os.Rename(path, path+".old") },
		"truncated": func(path string) error { return os.Truncate(path, 0) },
		"replaced": func(path string) error {
			return errors.Join(os.WriteFile(path+".x", nil, 0o600), os.Rename(path+".x", path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			log, said := listen()
			j := startJournal(filepath.Join(t.TempDir(), "journal"), log)
			j.Open(nil)
			start := func(i int) {
				j.add(&entry{Event: began, IDs: []string{fmt.Sprintf("sb%012x", i)}, Origin: Origin{Tag: "x"}})
			}
			told := func(want int) {
				t.Helper()
				text, err := os.ReadFile(j.path)
				if err != nil {
					t.Fatal(err)
				}
				if l := again(t, text); len(l.listed) != want {
					t.Errorf("it tells\n%s", text)
				}
			}
			start(1)
			if said.Len() > 0 {
				t.Errorf("the log says %s", said)
			}
			for want := 2; want < 4; want++ {
				if err := do(j.path); err != nil {
					t.Fatal(err)
				}
				start(want)
				told(want)
			}
			if err := do(j.path); err != nil {
				t.Fatal(err)
			}
			j.Close()
			told(3)
			if n := strings.Count(said.String(), "removed or changed"); n != 3 {
				t.Errorf("the log says %d times that it is written anew: %s", n, said)
			}
		})
	}
}

func FuzzJournal(f *testing.F) {
	text, err := os.ReadFile(journalPath)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text[:len(text)-20])
	f.Add([]byte("{\"journal\":1}\n{\"event\":\"ended\",\"id\":\"sb000000000003\",\"state\":\"exited\",\"reason\":\"\\ud800\\u0000\"}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := readLedger(text, most)
		if l == nil {
			t.Fatal("no ledger")
		}
		for id, has := range l.listed {
			if id != has.ID || !ValidID(id) || len(has.Reason) > maxReason || has.Origin.check() != nil {
				t.Errorf("believed %+v", has)
			}
		}
		if err != nil {
			return
		}
		short := l.lines()
		back, err := readLedger(short, most)
		if err != nil || !bytes.Equal(back.lines(), short) {
			t.Errorf("%q is written as %q, and that as %q (%v)", text, short, back.lines(), err)
		}
	})
}

// BenchmarkJournal measures what a fork of so many children writes to the journal, beside
// BenchmarkFork.
func BenchmarkJournal(b *testing.B) {
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprintf("children=%d", n), func(b *testing.B) {
			j := startJournal(filepath.Join(b.TempDir(), "journal"), slog.New(slog.DiscardHandler))
			j.Open(nil)
			defer j.Close()
			ids := make([]string, n)
			for i := range ids {
				ids[i] = fmt.Sprintf("sb%012x", i)
			}
			now := time.Now().UTC()
			from := Origin{Tag: "pyagent", Cell: "0a1b2c3d", PID: 4711, VCPUs: 1, MemoryMiB: 512, DiskMiB: 4096, Created: now, Restored: now}
			for b.Loop() {
				j.Began(Siblings{ids, from})
			}
		})
	}
}
