package server

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/internal/jsonbody"
)

const (
	ndjsonType = "application/x-ndjson"

	// maxSecs is the longest timeout, a year.
	maxSecs = 365 * 24 * 60 * 60
)

// readJSON decodes the body of a request into v, strictly, and returns the
// bytes it read.
func readJSON(w http.ResponseWriter, r *http.Request, limit int64, v any) ([]byte, error) {
	body, err := jsonbody.Read(w, r, limit, v)
	return body, bodyError(err)
}

// readOptionalJSON is readJSON for a body that may be left out; v then stays as
// it is.
func readOptionalJSON(w http.ResponseWriter, r *http.Request, limit int64, v any) error {
	return bodyError(jsonbody.ReadOptional(w, r, limit, v))
}

// readBytes reads a body as it is.
func readBytes(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	rc := http.NewResponseController(w)
	rc.SetReadDeadline(time.Now().Add(jsonbody.Time))
	defer rc.SetReadDeadline(time.Time{})
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, limit))
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return nil, tooLarge(limit)
	case err != nil:
		return nil, invalid("", "reading the body: %v", err)
	}
	return body, nil
}

func tooLarge(limit int64) error { return bodyError(jsonbody.TooLarge(limit)) }

// wantType refuses a body that says it is something else.
func wantType(r *http.Request, want string) error { return bodyError(jsonbody.Want(r, want)) }

// decodeJSON decodes exactly one JSON object without unknown fields.
func decodeJSON(body []byte, v any) error { return bodyError(jsonbody.Decode(body, v)) }

// bodyError gives the API's code to what is wrong with a body.
func bodyError(err error) error {
	var e *jsonbody.Error
	if !errors.As(err, &e) {
		return err
	}
	code := api.ErrorCodeInvalidArgument
	switch e.Status {
	case http.StatusRequestEntityTooLarge:
		code = api.ErrorCodeTooLarge
	case http.StatusUnsupportedMediaType:
		code = api.ErrorCodeUnsupportedMediaType
	}
	return refuse(code, e.Hint, "%s", e.Message)
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
