package suite

import (
	"strings"
	"testing"
	"time"
)

func TestLineRoundTrip(t *testing.T) {
	for _, l := range []Line{
		{Event: Start, Name: "boot"},
		{Event: Done, Name: "py-sort", Time: 3*time.Second + 1, Exit: -1, Text: "Traceback: \"x\"\n  two lines, é \x00"},
		{Event: Sum, Name: "git", Time: 1, Text: "e3b0c442"},
		{Event: Fail, Name: "-", Text: "mounting /dev/vda on /run/lower: no such device"},
		{Event: End, Name: "-", Exit: 1},
	} {
		for _, console := range []string{l.String(), l.String() + "\r\n", "[    1.0] noise" + l.String()} {
			got, ok, err := ParseLine(console)
			if !ok || err != nil || got != l {
				t.Errorf("ParseLine(%q) = %+v, %v, %v, want %+v", console, got, ok, err, l)
			}
		}
	}
}

func TestLineIsOneLineOfASCII(t *testing.T) {
	s := Line{Event: Fail, Name: "-", Text: "a\nb\rc\x80é"}.String()
	for _, r := range s {
		if r < ' ' || r > '~' {
			t.Fatalf("%q has %q in it", s, r)
		}
	}
}

func TestParseLineRefuses(t *testing.T) {
	for _, s := range []string{
		"FORKD-BENCH ",
		"FORKD-BENCH start boot",
		"FORKD-BENCH start boot t=1 exit=0",
		"FORKD-BENCH start  t=1 exit=0 text=\"\"",
		"FORKD-BENCH begin boot t=1 exit=0 text=\"\"",
		"FORKD-BENCH start boot t=-1 exit=0 text=\"\"",
		"FORKD-BENCH start boot t=99999999999999999999 exit=0 text=\"\"",
		"FORKD-BENCH start boot t=1 exit=x text=\"\"",
		"FORKD-BENCH start boot exit=0 t=1 text=\"\"",
		"FORKD-BENCH start boot t=1 exit=0 text=\"",
		"FORKD-BENCH start boot t=1 exit=0 text=\"\" more",
		"FORKD-BENCH start bo[ 1.2] oom-killer",
	} {
		if l, ok, err := ParseLine(s); !ok || err == nil {
			t.Errorf("ParseLine(%q) = %+v, %v, %v, want an error", s, l, ok, err)
		}
	}
	for _, s := range []string{"", "login:", "FORKD-BENCH", "forkd-bench start"} {
		if l, ok, err := ParseLine(s); ok || err != nil {
			t.Errorf("ParseLine(%q) = %+v, %v, %v, want none of ours", s, l, ok, err)
		}
	}
}

func FuzzParseLine(f *testing.F) {
	f.Add(Line{Event: Done, Name: "git", Time: 5, Exit: 1, Text: "x"}.String())
	f.Add("FORKD-BENCH sum a t=1 exit=0 text=`raw`")
	f.Add(strings.Repeat(Mark, 3))
	f.Fuzz(func(t *testing.T, s string) {
		l, ok, err := ParseLine(s)
		if !ok || err != nil {
			return
		}
		again, ok, err := ParseLine(l.String())
		if !ok || err != nil || again != l {
			t.Fatalf("%+v became %+v (%v, %v)", l, again, ok, err)
		}
	})
}
