package cli

import (
	"cmp"
	"fmt"
	"time"

	"github.com/forkd-dev/forkd/client"
)

// progress shows work that takes its time, on standard error: on a terminal as
// one line that changes, in a pipe as one line per step. It keeps how long each
// step took.
type progress struct {
	io    *Streams
	times []stepTime // of the steps that ended

	name  string    // of the step under way, empty between steps
	begun time.Time // the step
	shown time.Time // the line
	open  bool      // a line on the terminal is not ended
}

// stepTime is how long a step took.
type stepTime struct {
	Step string  `json:"step"`
	Ms   float64 `json:"ms"`
}

// stepTitles says in words what a step is.
var stepTitles = map[string]string{
	"daemon":   "reach the daemon",
	"find":     "look for the snapshot",
	"packages": "fetch packages",
	"image":    "build the image",
	"boot":     "boot the parent",
	"warm":     "warm the runtime",
	"freeze":   "freeze the snapshot",
	"branch":   "branch the sandbox",
	"compact":  "flatten the chain",
	"verify":   "verify every byte",
	"pack":     "pack the snapshot",
	"unpack":   "unpack the snapshot",
	"open":     "open the snapshot, try one child",
	"fork":     "fork the children",
	"eval":     "evaluate " + probe + " in each",
	"measure":  "measure memory",
	"kill":     "end the children",
}

func title(step string) string { return cmp.Or(stepTitles[step], step) }

func newProgress(io *Streams) *progress { return &progress{io: io} }

// redraw is how often a line on the terminal may change.
const redraw = 100 * time.Millisecond

// begin tells that a step has begun, and that the one before has ended.
func (p *progress) begin(step string) { p.update(step, "", 0, 0) }

// update tells how far a step is. An empty message stands for the step's title,
// total is zero while it is unknown.
func (p *progress) update(step, message string, done, total int64) {
	now := time.Now()
	first := step != p.name
	if first {
		p.end()
		p.name, p.begun = step, now
	}
	message = cmp.Or(message, title(step))
	if !p.io.ErrTTY {
		if first {
			fmt.Fprintf(p.io.Err, "forkd: %s\n", message)
		}
		return
	}
	if !first && now.Sub(p.shown) < redraw && done != total {
		return
	}
	p.shown, p.open = now, true
	if total > 0 {
		message += fmt.Sprintf("  %d%%", min(done, total)*100/total)
	}
	fmt.Fprintf(p.io.Err, "\r\x1b[K%s  (%s)", message, brief(now.Sub(p.begun)))
}

// amount is update for a step of which only the bytes that are done are known.
// In a pipe, where a step has one line, they would be those of its beginning.
func (p *progress) amount(step, message string, done int64) {
	switch {
	case !p.io.ErrTTY:
		p.update(step, message, 0, 0)
	case step != p.name || time.Since(p.shown) >= redraw:
		p.update(step, fmt.Sprintf("%s  %s", message, size(done)), 0, 0)
	}
}

// follow is update for what the daemon tells.
func (p *progress) follow(s client.Progress) { p.update(s.Step, s.Message, s.Done, s.Total) }

// end ends the step that is under way.
func (p *progress) end() {
	if p.open {
		fmt.Fprintln(p.io.Err)
		p.open = false
	}
	if p.name != "" {
		p.times = append(p.times, stepTime{p.name, millis(time.Since(p.begun))})
		p.name = ""
	}
}
