package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/bench/qemu/suite"
)

// seconds makes a sample by a clock that guest and host agree about.
func seconds(s float64, sum string) *sample {
	d := time.Duration(s * float64(time.Second))
	return &sample{host: d, guest: d, used: usage{instructions: uint64(s * 100e6), cpu: d / 2}, sum: sum}
}

func measuredFixture() runs {
	qemu, fork := []float64{2, 10, 3}, []float64{4, 5, 6}
	m := runs{}
	for i := range 3 {
		round := func(s float64) map[string]*sample {
			return map[string]*sample{suite.Boot: {host: time.Second}, "good": seconds(s, "same"), "bad": seconds(s, "same"), "broken": seconds(s, "same")}
		}
		m[qemuName] = append(m[qemuName], round(qemu[i]))
		m[forkdName] = append(m[forkdName], round(fork[i]))
	}
	m[forkdName][1]["bad"].sum = "other"
	m[forkdName][2]["broken"] = &sample{err: errors.New("exit status 1")}
	m[qemuName][0]["good"].guest = 4 * time.Second
	return m
}

func TestSummarize(t *testing.T) {
	s := summarize(measuredFixture(), []string{"good", "bad", "broken"})
	good := s.Workloads[1]
	if good.QEMU != 3 || good.Forkd != 5 || good.Ratio != 0.6 || good.QEMUCPU != 1.5 || good.CPURatio != 0.6 || good.Instructions != 500e6 || good.Error != "" {
		t.Errorf("good: %+v", *good)
	}
	if good.Noise != 8.0/3 {
		t.Errorf("noise is %v, want that of the worse machine", good.Noise)
	}
	for i, want := range map[int]string{2: "forkd, round 2 printed another than forkd, round 1", 3: "forkd, round 3: exit status 1"} {
		r := s.Workloads[i]
		if !strings.Contains(r.Error, want) || r.QEMU != 0 || r.Ratio != 0 {
			t.Errorf("%s: %+v, want the error %q and no figure", r.Name, *r, want)
		}
	}
	if want := geomean([]float64{1, 0.6}); s.Geomean != want {
		t.Errorf("geomean is %v, want %v", s.Geomean, want)
	}
	if len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "good took 2.000 s by the host's clock, 4.000 s by the guest's") {
		t.Errorf("warnings: %q", s.Warnings)
	}
	if !s.failed() {
		t.Error("a failure does not count")
	}
}

func TestSummarizeOneMachine(t *testing.T) {
	m := measuredFixture()
	delete(m, qemuName)
	s := summarize(m, []string{"good"})
	if good := s.Workloads[1]; good.Forkd != 5 || good.Ratio != 0 || good.QEMU != 0 || s.Geomean != 0 || s.failed() {
		t.Errorf("good: %+v, geomean %v", *good, s.Geomean)
	}
}

func TestTable(t *testing.T) {
	table := summarize(measuredFixture(), []string{"good", "bad"}).table()
	for _, want := range [][]string{
		{"workload", "qemu s", "forkd s", "ratio"},
		{"boot", "1.000", "1.000", "1.00", "-"},
		{"good", "3.000", "5.000", "0.60", "267%", "1.500", "2.500", "0.60", "500", "200"},
		{"bad", "error: its output differs"},
		{"geomean", "0.77"},
		{"warning: qemu, round 1"},
	} {
		if !hasLine(table, want) {
			t.Errorf("no line has %q in this order:\n%s", want, table)
		}
	}
}

// hasLine tells whether a line begins with the first word and has the others
// behind it.
func hasLine(text string, words []string) bool {
lines:
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, words[0]) {
			continue
		}
		for _, w := range words {
			_, after, ok := strings.Cut(line, w)
			if !ok {
				continue lines
			}
			line = after
		}
		return true
	}
	return false
}

func TestJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.json")
	if err := summarize(measuredFixture(), []string{"good", "bad"}).writeJSON(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Geomean   float64
		Workloads []map[string]any
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	good, bad := got.Workloads[1], got.Workloads[2]
	if got.Geomean == 0 || good["name"] != "good" || good["qemu_s"] != 3.0 || good["forkd_s"] != 5.0 || good["ratio"] != 0.6 {
		t.Errorf("JSON is %s", text)
	}
	if _, ok := bad["ratio"]; ok || bad["error"] == nil {
		t.Errorf("a failed workload is %v", bad)
	}
}
