package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// table renders the summary for people.
func (s *summary) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-14s %9s %9s %7s %7s %11s %11s %7s %8s %9s\n", "workload",
		"qemu s", "forkd s", "ratio", "noise", "qemu cpu s", "forkd cpu s", "ratio", "Minstr", "Minstr/s")
	for _, r := range s.Workloads {
		if r.Error != "" {
			fmt.Fprintf(&b, "%-14s error: %s\n", r.Name, r.Error)
			continue
		}
		fmt.Fprintf(&b, "%-14s %9s %9s %7s %6.0f%% %11s %11s %7s %8s %9s\n", r.Name,
			figure(3, r.QEMU), figure(3, r.Forkd), figure(2, r.Ratio), 100*r.Noise,
			figure(3, r.QEMUCPU), figure(3, r.ForkdCPU), figure(2, r.CPURatio),
			figure(0, r.Instructions/1e6), figure(0, quotient(r.Instructions/1e6, r.ForkdCPU)))
	}
	fmt.Fprintf(&b, "%-14s %9s %9s %7s %7s %11s %11s %7s\n", "geomean",
		"", "", figure(2, s.Geomean), "", "", "", figure(2, s.CPUGeomean))
	for _, w := range s.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	return b.String()
}

// figure formats what was measured, and a dash for what was not.
func figure(decimals int, v float64) string {
	if v <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.*f", decimals, v)
}

// failed tells whether some workload has no figures.
func (s *summary) failed() bool {
	return slices.ContainsFunc(s.Workloads, func(r *result) bool { return r.Error != "" })
}

// writeJSON writes the summary to a file.
func (s *summary) writeJSON(path string) error {
	text, err := json.MarshalIndent(s, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
