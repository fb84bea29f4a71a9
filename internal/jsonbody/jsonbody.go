// Package jsonbody reads JSON bodies of requests, strictly: under a limit, within
// a time, one object, no unknown fields, and with errors for people who have not
// read our source.
package jsonbody

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Type is the media type of JSON.
const Type = "application/json"

// Time bounds how long a body that is decoded whole may take to arrive.
const Time = 30 * time.Second

// Error is why a body is refused.
type Error struct {
	Status        int // 400, 413 or 415
	Message, Hint string
}

func (e *Error) Error() string { return e.Message }

func invalid(format string, args ...any) error {
	return &Error{Status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...)}
}

// Read decodes the body of a request into v and returns the bytes it read.
func Read(w http.ResponseWriter, r *http.Request, limit int64, v any) ([]byte, error) {
	body, err := read(w, r, limit)
	if err != nil {
		return nil, err
	}
	return body, Decode(body, v)
}

// ReadOptional is Read for a body that may be left out; v then stays as it is.
func ReadOptional(w http.ResponseWriter, r *http.Request, limit int64, v any) error {
	if r.ContentLength == 0 {
		return nil
	}
	body, err := read(w, r, limit)
	if err != nil || len(body) == 0 {
		return err
	}
	return Decode(body, v)
}

// read reads a body that says it is JSON.
func read(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if err := Want(r, Type); err != nil {
		return nil, err
	}
	if r.ContentLength > limit {
		return nil, TooLarge(limit)
	}
	rc := http.NewResponseController(w)
	rc.SetReadDeadline(time.Now().Add(Time))
	defer rc.SetReadDeadline(time.Time{})
	body, err := readAll(http.MaxBytesReader(nil, r.Body, limit), r.ContentLength)
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return nil, TooLarge(limit)
	case err != nil:
		return nil, invalid("reading the body: %v", err)
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

// TooLarge is the error for a body of more than limit bytes.
func TooLarge(limit int64) error {
	return &Error{Status: http.StatusRequestEntityTooLarge, Message: fmt.Sprintf("the body is over the limit of %d bytes", limit)}
}

// Want refuses a body that says it is something else than want. One that says
// nothing is taken at its word.
func Want(r *http.Request, want string) error {
	given := r.Header.Get("Content-Type")
	if given == "" {
		return nil
	}
	if media, _, err := mime.ParseMediaType(given); err == nil && media == want {
		return nil
	}
	return &Error{
		Status:  http.StatusUnsupportedMediaType,
		Message: fmt.Sprintf("the body is %s, not %s", quote(given), want),
		Hint:    "send the header Content-Type: " + want,
	}
}

// Decode decodes exactly one JSON object without unknown fields.
func Decode(body []byte, v any) error {
	text := bytes.TrimLeft(body, " \t\r\n")
	if len(text) == 0 {
		return invalid("the body is empty; it must be a JSON object")
	}
	if text[0] != '{' {
		return invalid("the body must be a JSON object")
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return malformed(err)
	}
	if len(bytes.TrimSpace(text[dec.InputOffset():])) != 0 {
		return invalid("the body holds more than one JSON value")
	}
	return nil
}

// malformed words a decoding error.
func malformed(err error) error {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) && kind.Field != "" {
		return invalid("%s: must be %s, not %s", kind.Field, kindName(kind.Type), kind.Value)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid("malformed JSON: it ends too early")
	}
	text := strings.TrimPrefix(err.Error(), "json: ")
	if strings.HasPrefix(text, "unknown field") {
		return invalid("%s", text)
	}
	return invalid("malformed JSON: %s", text)
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

func quote(s string) string {
	const limit = 100
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return strconv.Quote(s)
}
