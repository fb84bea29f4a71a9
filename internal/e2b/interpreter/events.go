package interpreter

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

type event struct {
	Type string `json:"type"`
}

// outputEvent is output. Clients read the timestamp whatever it says.
type outputEvent struct {
	Type      string `json:"type"` // stdout or stderr
	Text      string `json:"text"`
	Timestamp string `json:"timestamp"`
}

type countEvent struct {
	Type  string `json:"type"`
	Count int    `json:"execution_count"`
}

type errorEvent struct {
	Type      string `json:"type"`
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

// fields are the names that forms of a value have on the wire, by MIME type.
var fields = map[string]string{
	"text/plain":             "text",
	"text/html":              "html",
	"text/markdown":          "markdown",
	"image/svg+xml":          "svg",
	"image/png":              "png",
	"image/jpeg":             "jpeg",
	"application/pdf":        "pdf",
	"text/latex":             "latex",
	"application/json":       "json",
	"application/javascript": "javascript",
	"e2b/data":               "data",
	"e2b/chart":              "chart",
}

// resultEvent is a value in all its forms. Those without a field of their own are in
// extra, where the Python SDK looks for them, and beside it, where the JavaScript
// SDK does.
func resultEvent(r *sandbox.RichResult) map[string]json.RawMessage {
	e := map[string]json.RawMessage{"type": json.RawMessage(`"result"`), "is_main_result": json.RawMessage("false")}
	if r.Main {
		e["is_main_result"] = json.RawMessage("true")
	}
	extra := map[string]json.RawMessage{}
	for kind, form := range r.Data {
		if !json.Valid(form) {
			continue // the guest's word for it is not enough
		}
		if field, ok := fields[kind]; ok {
			e[field] = form
		} else if strings.Contains(kind, "/") {
			extra[kind], e[kind] = form, form
		}
	}
	if text, ok := e["text"]; ok {
		e["text"] = unquoted(text)
	}
	if r.Chart != nil && json.Valid(r.Chart) {
		e["chart"] = r.Chart
	}
	maps.DeleteFunc(e, func(_ string, v json.RawMessage) bool { return string(bytes.TrimSpace(v)) == "null" })
	if len(extra) > 0 {
		e["extra"] = marshal(extra)
	}
	return e
}

// unquoted takes the quotes off the representation of a string: E2B shows 'a' as a.
func unquoted(form json.RawMessage) json.RawMessage {
	var text string
	if json.Unmarshal(form, &text) != nil || len(text) < 2 {
		return form
	}
	if first, last := text[0], text[len(text)-1]; first != last || (first != '\'' && first != '"') {
		return form
	}
	return marshal(text[1 : len(text)-1])
}

func marshal(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: valid JSON does not marshal: " + err.Error())
	}
	return b
}

const hexDigits = "0123456789abcdef"

// appendASCII appends valid JSON with every character beyond ASCII as an escape.
// SDKs decode the pieces in which an answer arrives one by one, so a piece must
// not end within a character.
func appendASCII(to, valid []byte) []byte {
	for len(valid) > 0 {
		if n := slices.IndexFunc(valid, func(b byte) bool { return b >= utf8.RuneSelf }); n != 0 {
			if n < 0 {
				n = len(valid)
			}
			to = append(to, valid[:n]...)
			valid = valid[n:]
			continue
		}
		r, size := utf8.DecodeRune(valid)
		valid = valid[size:]
		if high, low := utf16.EncodeRune(r); high != utf8.RuneError {
			to = appendEscape(to, high)
			r = low
		}
		to = appendEscape(to, r)
	}
	return to
}

func appendEscape(to []byte, unit rune) []byte {
	return append(to, '\\', 'u', hexDigits[unit>>12&0xF], hexDigits[unit>>8&0xF], hexDigits[unit>>4&0xF], hexDigits[unit&0xF])
}
