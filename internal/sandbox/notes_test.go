package sandbox

import (
	"encoding/json"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A burst is not disturbed by the notes of what has begun it, unless it does not end.
func TestNotesWaitForAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &notes{}
		due := func() int {
			synctest.Wait()
			n.mu.Lock()
			defer n.mu.Unlock()
			return len(n.due)
		}
		for i := range 10 {
			n.soon(&box{over: true})
			time.Sleep(noteAfter - time.Millisecond)
			if got := due(); got != i+1 {
				t.Fatalf("after %d in a row %d are due", i+1, got)
			}
		}
		time.Sleep(time.Millisecond)
		if got := due(); got != 0 {
			t.Errorf("%d are due after a pause", got)
		}
		began := time.Now()
		for i := 1; due() == i-1; i++ {
			n.soon(&box{over: true})
			if time.Sleep(time.Millisecond); time.Since(began) > noteLatest {
				t.Fatal("in a burst without an end nothing is told")
			}
		}
		time.Sleep(time.Second)
	})
}

// Whoever changes a sandbox at the same time, a later daemon finds it as it was last.
func TestLastNoteIsOfTheLastState(t *testing.T) {
	home := t.TempDir()
	m := openBare(t, home)
	bare(t, m, "base", "")
	b := forkBare(t, m, "base")
	for range 100 {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 3 {
					_, err := m.relive(b, func(l *life) error {
						n, _ := strconv.Atoi(string(l.front))
						l.front = json.RawMessage(strconv.Itoa(n + 1))
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		want := string(b.info().Front)
		b.machine.Refresh() // which is answered when all notes have been read
		if err := m.Abandon(); err != nil {
			t.Fatal(err)
		}
		m = openBare(t, home)
		if b = m.lookup(b.id); b == nil {
			t.Fatal("it was not taken over")
		}
		if got := string(b.info().Front); got != want {
			t.Fatalf("it was %s, and is %s", want, got)
		}
	}
}
