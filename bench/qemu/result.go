package main

import (
	"fmt"
	"time"

	"github.com/forkd-dev/forkd/bench/qemu/suite"
)

// result is one workload, measured on both machines in several rounds, or on
// one of them. Figures are medians over the rounds; 0 is not measured.
type result struct {
	Name  string  `json:"name"`
	QEMU  float64 `json:"qemu_s,omitempty"`  // seconds
	Forkd float64 `json:"forkd_s,omitempty"` // seconds
	Ratio float64 `json:"ratio,omitempty"`   // QEMU / Forkd
	Noise float64 `json:"noise,omitempty"`   // spread of the rounds over their median, the worse one

	QEMUCPU  float64 `json:"qemu_cpu_s,omitempty"`
	ForkdCPU float64 `json:"forkd_cpu_s,omitempty"`
	CPURatio float64 `json:"cpu_ratio,omitempty"`

	Instructions float64   `json:"forkd_instructions,omitempty"`
	QEMURounds   []float64 `json:"qemu_rounds_s,omitempty"`
	ForkdRounds  []float64 `json:"forkd_rounds_s,omitempty"`
	Error        string    `json:"error,omitempty"`
}

// summary is the whole comparison.
type summary struct {
	Geomean    float64   `json:"geomean,omitempty"`     // of the ratios there are
	CPUGeomean float64   `json:"cpu_geomean,omitempty"` // likewise
	MemoryMiB  int       `json:"memory_mib"`
	QEMU       string    `json:"qemu,omitempty"` // version
	Kernel     string    `json:"kernel"`         // release
	Image      string    `json:"image"`          // key
	Workloads  []*result `json:"workloads"`
	Warnings   []string  `json:"warnings,omitempty"`
}

// runs are the samples by monitor, round and workload.
type runs map[string][]map[string]*sample

// summarize condenses what was measured.
func summarize(measured runs, names []string) *summary {
	s := &summary{Warnings: clockWarnings(measured, names)}
	var ratios, cpuRatios []float64
	for _, name := range append([]string{suite.Boot}, names...) {
		r := condense(name, measured)
		s.Workloads = append(s.Workloads, r)
		ratios, cpuRatios = append(ratios, r.Ratio), append(cpuRatios, r.CPURatio)
	}
	s.Geomean, s.CPUGeomean = geomean(ratios), geomean(cpuRatios)
	return s
}

// condense makes one result. A failure, or output that differs, leaves it
// without figures.
func condense(name string, measured runs) *result {
	if err := agree(name, measured); err != nil {
		return &result{Name: name, Error: err.Error()}
	}
	seconds := func(monitor string, of func(*sample) time.Duration) (values []float64) {
		for _, round := range measured[monitor] {
			values = append(values, of(round[name]).Seconds())
		}
		return values
	}
	wall := func(s *sample) time.Duration { return s.host }
	cpu := func(s *sample) time.Duration { return s.used.cpu }
	r := &result{Name: name, QEMURounds: seconds(qemuName, wall), ForkdRounds: seconds(forkdName, wall)}
	r.QEMU, r.Forkd = median(r.QEMURounds), median(r.ForkdRounds)
	r.Ratio = quotient(r.QEMU, r.Forkd)
	r.Noise = max(spread(r.QEMURounds), spread(r.ForkdRounds))
	r.QEMUCPU, r.ForkdCPU = median(seconds(qemuName, cpu)), median(seconds(forkdName, cpu))
	r.CPURatio = quotient(r.QEMUCPU, r.ForkdCPU)
	var instructions []float64
	for _, round := range measured[forkdName] {
		instructions = append(instructions, float64(round[name].used.instructions))
	}
	r.Instructions = median(instructions)
	return r
}

// agree returns the first failure of a workload, or the first of its outputs
// that is not the same as those before.
func agree(name string, measured runs) error {
	var sum, from string
	for _, monitor := range []string{qemuName, forkdName} {
		for i, round := range measured[monitor] {
			s, label := round[name], fmt.Sprintf("%s, round %d", monitor, i+1)
			if s.err != nil {
				return fmt.Errorf("%s: %w", label, s.err)
			}
			if from != "" && s.sum != sum {
				return fmt.Errorf("its output differs: %s printed another than %s", label, from)
			}
			sum, from = s.sum, label
		}
	}
	return nil
}

// How far the guest's clock may be from the host's: a share of the time, and a
// constant for lines on their way.
const (
	clockTolerance = 0.05
	clockSlack     = 100 * time.Millisecond
)

// clockWarnings tells where the guest's clock and the host's disagree, which
// makes one of them wrong.
func clockWarnings(measured runs, names []string) (warnings []string) {
	for _, monitor := range []string{qemuName, forkdName} {
		for i, round := range measured[monitor] {
			for _, name := range names {
				s := round[name]
				limit := clockSlack + time.Duration(clockTolerance*float64(s.host))
				if s.err == nil && (s.guest-s.host).Abs() > limit {
					warnings = append(warnings, fmt.Sprintf("%s, round %d: %s took %.3f s by the host's clock, %.3f s by the guest's",
						monitor, i+1, name, s.host.Seconds(), s.guest.Seconds()))
				}
			}
		}
	}
	return warnings
}
