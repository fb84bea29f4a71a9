package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// Name is a string of bytes that need not be UTF-8: a path, a file name, an argument, a link target. In JSON it is a
// string when it is UTF-8, and {"base64": "…"} when it is not, so that every name survives and none is ambiguous.
type Name string

type encodedName struct {
	Base64 []byte `json:"base64"`
}

// MarshalJSON implements json.Marshaler.
func (n Name) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(n)) {
		return json.Marshal(string(n))
	}
	return json.Marshal(encodedName{[]byte(n)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *Name) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var e encodedName
		if err := strict(b, &e); err != nil {
			return fmt.Errorf("decoding name: %w", err)
		}
		*n = Name(e.Base64)
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("decoding name: %w", err)
	}
	*n = Name(s)
	return nil
}

// Names converts strings to Names.
func Names(s ...string) []Name {
	names := make([]Name, len(s))
	for i := range s {
		names[i] = Name(s[i])
	}
	return names
}

// strict decodes one JSON value and refuses unknown fields and trailing data.
func strict(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if d.InputOffset() != int64(len(b)) && len(bytes.TrimSpace(b[d.InputOffset():])) != 0 {
		return fmt.Errorf("data after the end of the value")
	}
	return nil
}
