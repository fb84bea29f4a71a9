package main

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/bench/qemu/suite"
)

const (
	maxLine    = 4096 // bytes of a console line that are kept
	maxPending = 256  // reports that nobody has taken yet
	maxOther   = 4096 // bytes of other output that are kept
)

var errFlood = errors.New("the guest sends reports faster than they can be read")

// report is one line of the guest, with the host's time of its arrival.
type report struct {
	suite.Line
	at  time.Time
	err error // the line cannot be understood
}

// console takes what a guest prints. Write never blocks, since the machine may
// stand still meanwhile.
type console struct {
	reports chan report
	echo    io.Writer // gets everything, if not nil; immutable

	mu    sync.Mutex
	line  []byte     // incomplete; guarded by mu
	other suite.Tail // what is no report; guarded by mu
}

func newConsole(echo io.Writer) *console {
	return &console{reports: make(chan report, maxPending), echo: echo, other: suite.Tail{Limit: maxOther}}
}

// Write implements io.Writer.
func (c *console) Write(p []byte) (int, error) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.echo != nil {
		_, _ = c.echo.Write(p) // only to watch
	}
	for rest := p; len(rest) > 0; {
		piece, after, complete := bytes.Cut(rest, []byte("\n"))
		c.line = append(c.line, piece[:min(len(piece), maxLine-len(c.line))]...)
		if complete {
			c.finish(now)
		}
		rest = after
	}
	return len(p), nil
}

// finish looks at a complete line. The caller holds c.mu.
func (c *console) finish(now time.Time) {
	line, ours, err := suite.ParseLine(string(c.line))
	c.line = append(c.line, '\n')
	if ours {
		select {
		case c.reports <- report{line, now, err}:
		default: // the reader sees that the sequence has a hole
			_, _ = c.other.Write([]byte(errFlood.Error() + "\n"))
		}
	} else {
		_, _ = c.other.Write(c.line)
	}
	c.line = c.line[:0]
}

// rest returns the end of what the guest printed besides reports.
func (c *console) rest() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(bytes.TrimSpace(append(bytes.Clone(c.other.Text), c.line...)))
}
