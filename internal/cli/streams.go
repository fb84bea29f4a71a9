package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/term"
)

// Streams are where a command reads and writes.
type Streams struct {
	In     io.Reader
	Out    io.Writer
	Err    io.Writer
	InTTY  bool
	OutTTY bool
	ErrTTY bool
}

// System returns the streams of the process.
func System() Streams {
	return Streams{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		InTTY:  term.IsTerminal(int(os.Stdin.Fd())),
		OutTTY: term.IsTerminal(int(os.Stdout.Fd())),
		ErrTTY: term.IsTerminal(int(os.Stderr.Fd())),
	}
}

// json writes v for programs: on one line in a pipe, indented on a terminal.
func (s *Streams) json(v any) error {
	enc := json.NewEncoder(s.Out)
	enc.SetEscapeHTML(false)
	if s.OutTTY {
		enc.SetIndent("", "  ")
	}
	return enc.Encode(v)
}

// table writes rows: aligned under a heading on a terminal, in a pipe as
// tab-separated fields.
func (s *Streams) table(heading []string, rows [][]string) error {
	out := bufio.NewWriter(s.Out)
	if !s.OutTTY {
		for _, row := range rows {
			fmt.Fprintln(out, strings.Join(row, "\t"))
		}
		return out.Flush()
	}
	tab := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{heading}, rows...) {
		fmt.Fprintln(tab, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	return out.Flush()
}

// when shows a time: how long ago on a terminal, exactly in a pipe.
func (s *Streams) when(t time.Time) string {
	if !s.OutTTY {
		return t.UTC().Format(time.RFC3339)
	}
	return brief(time.Since(t)) + " ago"
}

// until shows a time to come.
func (s *Streams) until(t *time.Time) string {
	switch {
	case t == nil:
		return "-"
	case !s.OutTTY:
		return t.UTC().Format(time.RFC3339)
	}
	return "in " + brief(time.Until(*t))
}

// brief shows a duration in its largest unit.
func brief(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(d, 0)/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// precise shows how many milliseconds a step took.
func precise(ms float64) string {
	switch {
	case ms < 1:
		return fmt.Sprintf("%.2f ms", ms)
	case ms < 1000:
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.1f s", ms/1e3)
}

// size shows bytes.
func size(n int64) string {
	switch {
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
