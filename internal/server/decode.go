package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/forkd-dev/forkd/api"
)

const (
	jsonType   = "application/json"
	ndjsonType = "application/x-ndjson"

	// bodyTime bounds how long a body that is decoded whole may take to arrive.
	bodyTime = 30 * time.Second
	// maxSecs is the longest timeout, a year.
	maxSecs = 365 * 24 * 60 * 60
)

// readJSON decodes the body of a request into v, strictly, and returns the
// bytes it read.
func readJSON(w http.ResponseWriter, r *http.Request, limit int64, v any) ([]byte, error) {
	body, err := readBody(w, r, limit)
	if err != nil {
		return nil, err
	}
	return body, decodeJSON(body, v)
}

// readOptionalJSON is readJSON for a body that may be left out; v then stays as
// it is.
func readOptionalJSON(w http.ResponseWriter, r *http.Request, limit int64, v any) error {
	if r.ContentLength == 0 {
		return nil
	}
	body, err := readBody(w, r, limit)
	if err != nil || len(body) == 0 {
		return err
	}
	return decodeJSON(body, v)
}

// readBody reads a body that says it is JSON.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if err := wantType(r, jsonType); err != nil {
		return nil, err
	}
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	rc := http.NewResponseController(w)
	rc.SetReadDeadline(time.Now().Add(bodyTime))
	defer rc.SetReadDeadline(time.Time{})
	body, err := readAll(http.MaxBytesReader(nil, r.Body, limit), r.ContentLength)
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return nil, tooLarge(limit)
	case err != nil:
		return nil, invalid("", "reading the body: %v", err)
	}
	return body, nil
}

// readAll is io.ReadAll with a first guess of the size.
func readAll(r io.Reader, size int64) ([]byte, error) {
	var buf bytes.Buffer
	buf.Grow(int(max(size, 0)) + bytes.MinRead)
	_, err := buf.ReadFrom(r)
	return buf.Bytes(), err
}

func tooLarge(limit int64) error {
	return refuse(api.ErrorCodeTooLarge, "", "the body is over the limit of %d bytes", limit)
}

// wantType refuses a body that says it is something else. One that says nothing
// is taken at its word.
func wantType(r *http.Request, want string) error {
	given := r.Header.Get("Content-Type")
	if given == "" {
		return nil
	}
	if media, _, err := mime.ParseMediaType(given); err == nil && media == want {
		return nil
	}
	return refuse(api.ErrorCodeUnsupportedMediaType, "send the header Content-Type: "+want,
		"the body is %s, not %s", quote(given), want)
}

// decodeJSON decodes exactly one JSON object without unknown fields.
func decodeJSON(body []byte, v any) error {
	text := bytes.TrimLeft(body, " \t\r\n")
	if len(text) == 0 {
		return invalid("", "the body is empty; it must be a JSON object")
	}
	if text[0] != '{' {
		return invalid("", "the body must be a JSON object")
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return malformed(err)
	}
	if len(bytes.TrimSpace(text[dec.InputOffset():])) != 0 {
		return invalid("", "the body holds more than one JSON value")
	}
	return nil
}

// malformed words a decoding error for people who have not read our source.
func malformed(err error) error {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) && kind.Field != "" {
		return invalid("", "%s: must be %s, not %s", kind.Field, kindName(kind.Type), kind.Value)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid("", "malformed JSON: it ends too early")
	}
	text := strings.TrimPrefix(err.Error(), "json: ")
	if strings.HasPrefix(text, "unknown field") {
		return invalid("", "%s", text)
	}
	return invalid("", "malformed JSON: %s", text)
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Int, reflect.Int64:
		return "a whole number in range"
	case reflect.Float64:
		return "a number in range"
	case reflect.Slice:
		return "an array"
	default:
		return "an object"
	}
}

// seconds checks a timeout; nil is zero, for none.
func seconds(field string, secs *float64) (time.Duration, error) {
	if secs == nil {
		return 0, nil
	}
	if !(*secs > 0 && *secs <= maxSecs) {
		return 0, invalid("leave it out for none", "%s: must be over 0 and up to %d, not %v", field, maxSecs, *secs)
	}
	// Rounding up keeps the smallest number from becoming "no timeout".
	return time.Duration(math.Ceil(*secs * float64(time.Second))), nil
}

// number checks a whole number; nil is def.
func number[T int | int64](field string, n *T, def, low, high T) (T, error) {
	if n == nil {
		return def, nil
	}
	if *n < low || *n > high {
		return 0, invalid("", "%s: must be %d to %d, not %d", field, low, high, *n)
	}
	return *n, nil
}

var tagPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func checkTag(field, tag string) error { return checkWord(field, "tag", tag) }

func checkName(field, name string) error { return checkWord(field, "name", name) }

// checkWord checks what the user may choose to call something; kind is what
// that is called.
func checkWord(field, kind, word string) error {
	if tagPattern.MatchString(word) {
		return nil
	}
	if word == "" {
		return invalid("", "%s: required", field)
	}
	return invalid("a "+kind+" has 1 to 64 letters, digits, _ and -", "%s: malformed %s %s", field, kind, quote(word))
}

// checkText refuses the one byte that no program argument, variable or path
// can hold.
func checkText(field, s string) error {
	if strings.IndexByte(s, 0) >= 0 {
		return invalid("", "%s: holds a NUL byte", field)
	}
	return nil
}

func checkPath(field, path string) error {
	switch {
	case path == "":
		return invalid("", "%s: required", field)
	case path[0] != '/':
		return invalid("", "%s: must be absolute, not %s", field, quote(path))
	}
	return checkText(field, path)
}

func item(field string, i int) string { return fmt.Sprintf("%s[%d]", field, i) }
