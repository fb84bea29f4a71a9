package jsonbody

import (
	"net/http/httptest"
	"strings"
	"testing"
)

type request struct {
	Name  string         `json:"name"`
	Count *int           `json:"count"`
	Tags  []string       `json:"tags"`
	More  map[string]any `json:"more"`
}

func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		body, kind string
		status     int
		message    string
	}{
		"right":        {`{"name":"a","count":2}`, Type, 0, ""},
		"with charset": {`{"name":"a"}`, Type + "; charset=utf-8", 0, ""},
		"no type":      {`{"name":"a"}`, "", 0, ""},
		"space around": {" \n{} \t", Type, 0, ""},
		"other type":   {`{}`, "text/plain", 415, "not application/json"},
		"empty":        {"", Type, 400, "empty"},
		"cut":          {`{"name":`, Type, 400, "ends too early"},
		"wrong kind":   {`{"name":5}`, Type, 400, "name: must be a string, not number"},
		"fraction":     {`{"count":1.5}`, Type, 400, "count: must be a whole number in range"},
		"huge":         {`{"count":9223372036854775808}`, Type, 400, "count: must be a whole number in range"},
		"array":        {`[]`, Type, 400, "must be a JSON object"},
		"string":       {`"x"`, Type, 400, "must be a JSON object"},
		"two values":   {`{} {}`, Type, 400, "more than one"},
		"unknown":      {`{"naem":"a"}`, Type, 400, `unknown field "naem"`},
		"too large":    {`{"name":"` + strings.Repeat("x", 200) + `"}`, Type, 413, "over the limit of 100 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest("POST", "/", strings.NewReader(c.body))
			r.Header.Set("Content-Type", c.kind)
			if c.kind == "" {
				r.Header.Del("Content-Type")
			}
			var v request
			_, err := Read(httptest.NewRecorder(), r, 100, &v)
			if c.status == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			e, ok := err.(*Error)
			if !ok || e.Status != c.status || !strings.Contains(e.Message, c.message) {
				t.Errorf("got %v, want %d %q", err, c.status, c.message)
			}
		})
	}
}

func TestReadOptional(t *testing.T) {
	v := request{Name: "default"}
	r := httptest.NewRequest("POST", "/", nil)
	if err := ReadOptional(httptest.NewRecorder(), r, 100, &v); err != nil || v.Name != "default" {
		t.Errorf("%+v %v", v, err)
	}
	r = httptest.NewRequest("POST", "/", strings.NewReader("{"))
	if err := ReadOptional(httptest.NewRecorder(), r, 100, &v); err == nil {
		t.Error("half a body was taken for none")
	}
}

// FuzzDecode: whatever comes, there is a value or an error in words.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{"", "{}", `{"name":"a"}`, `{"count":1e99}`, `{"tags":[1]}`, `{"more":{"a":[{}]}}`, "null", "\xff", `{"name":"a"}x`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var v request
		if err := Decode(body, &v); err != nil && err.(*Error).Message == "" {
			t.Error("an error without words")
		}
	})
}
