package agent

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTextOfPieces(t *testing.T) {
	for whole, want := range map[string]string{
		"plain":         "plain",
		"a☕é𝄞b":         "a☕é𝄞b",
		"\xff\xfe":      "\ufffd\ufffd",
		"☕\xe2\x98":     "☕\ufffd\ufffd",
		"\xe2\x98a\xf0": "\ufffd\ufffda\ufffd",
	} {
		for size := 1; size <= len(whole); size++ {
			if got := inPieces(whole, size); got != want {
				t.Errorf("%q in pieces of %d is %q, want %q", whole, size, got, want)
			}
		}
	}
}

func inPieces(whole string, size int) string {
	var stream text
	var b strings.Builder
	for at := 0; at < len(whole); at += size {
		b.WriteString(stream.add([]byte(whole[at:min(at+size, len(whole))])))
	}
	b.WriteString(stream.rest())
	return b.String()
}

func FuzzTextOfPieces(f *testing.F) {
	f.Add("a☕\xe2\x98", 1)
	f.Add("\xf0\x9d\x84\x9e\xff", 2)
	f.Fuzz(func(t *testing.T, whole string, size int) {
		if size < 1 {
			return
		}
		got := inPieces(whole, size)
		if !utf8.ValidString(got) || utf8.ValidString(whole) && got != whole {
			t.Errorf("%q in pieces of %d is %q", whole, size, got)
		}
	})
}
