package hub

import (
	"errors"
	"strings"
	"testing"
)

func TestReferences(t *testing.T) {
	for _, c := range []struct{ in, kind, want string }{
		{"owner/name", "name", "owner/name"},
		{"owner/name:1.2", "name", "owner/name:1.2"},
		{"https://host/dir/x.tar.zst", "url", "https://host/dir/x.tar.zst"},
		{"http://127.0.0.1:8080/x?sig=1", "url", "http://127.0.0.1:8080/x?sig=1"},
		{"./owner/name", "path", "./owner/name"},
		{"../x", "path", "../x"},
		{"/tmp/x", "path", "/tmp/x"},
		{"x" + ".forkd-snapshot.tar.zst", "path", "x.forkd-snapshot.tar.zst"},
		{"oci://localhost:5000/a/b:tag", "oci", "localhost:5000/a/b:tag"},
		{"oci://registry.example/a", "oci", "registry.example/a:latest"},
		{"oci://registry.example/a@sha256:" + strings.Repeat("a", 64), "oci", "registry.example/a@sha256:" + strings.Repeat("a", 64)},
		{"", "", ""},
		{"name", "", ""},
		{"a/b/c", "", ""},
		{"owner/..", "", ""},
		{"owner/.name", "", ""},
		{"-o/name", "", ""},
		{"owner/name:", "", ""},
		{"owner/name:a/b", "", ""},
		{"owner/name:..", "", ""},
		{"owner/" + strings.Repeat("n", 65), "", ""},
		{"owner/na me", "", ""},
		{"owner/name\n", "", ""},
		{"ftp://host/x", "", ""},
		{"file:///etc/passwd", "", ""},
		{"https:///x", "", ""},
		{"https://host", "", ""},
		{"https://host/", "", ""},
		{"https://ho st/x", "", ""},
		{"/tmp/a\x00b", "", ""},
		{"oci://", "", ""},
		{"oci://repository", "", ""},
		{"oci://library/repository", "", ""},
		{"oci://host.example/UPPER", "", ""},
		{"oci://host.example/a:b:c", "", ""},
	} {
		ref, err := Parse(c.in)
		kind, got := "", ""
		switch {
		case ref.Name != nil:
			kind, got = "name", ref.Name.String()
		case ref.URL != nil:
			kind, got = "url", ref.URL.String()
		case ref.OCI != nil:
			kind, got = "oci", ref.OCI.Name()
		case ref.Path != "":
			kind, got = "path", ref.Path
		}
		if kind != c.kind || got != c.want {
			t.Errorf("%q is %s %q, want %s %q", c.in, kind, got, c.kind, c.want)
		}
		if (err == nil) != (c.kind != "") || err != nil && !errors.Is(err, ErrReference) {
			t.Errorf("%q: error %v", c.in, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"owner/name:1", "oci://h.x/a:b", "https://h/x", "./x", "oci://[::1]:5/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ref, err := Parse(s)
		set := 0
		for _, is := range []bool{ref.Path != "", ref.URL != nil, ref.Name != nil, ref.OCI != nil} {
			if is {
				set++
			}
		}
		if err == nil && set != 1 || err != nil && (set != 0 || !errors.Is(err, ErrReference)) {
			t.Errorf("%q is %+v, error %v", s, ref, err)
		}
		if ref.Name != nil && strings.Contains(ref.Name.String(), "..") && strings.Contains(ref.Name.String(), "/..") {
			t.Errorf("%q leads elsewhere", s)
		}
	})
}
