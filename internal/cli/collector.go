package cli

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// maxKept is how much output of a command is collected, in bytes per stream.
const maxKept = 64 << 20

// collector keeps what is written to it.
type collector struct{ buf bytes.Buffer }

func (c *collector) Write(b []byte) (int, error) { return c.buf.Write(b) }

// text gives the bytes as the API does: as text, and exactly beside it if that
// loses something.
func (c *collector) text() (string, []byte) {
	b := c.buf.Bytes()
	if utf8.Valid(b) {
		return string(b), nil
	}
	return strings.ToValidUTF8(string(b), "\uFFFD"), b
}
