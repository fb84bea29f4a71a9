package debian

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"
)

const bookwormSources = `# a comment
Types: deb
# another comment
URIs: http://mirror.example/debian/
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
`

func TestFindMirrorInSources(t *testing.T) {
	for _, test := range []struct {
		name  string
		files map[string]string // below /etc/apt
		want  string            // empty: no mirror
	}{
		{"nothing", nil, ""},
		{"deb822", map[string]string{"sources.list.d/debian.sources": bookwormSources}, "http://mirror.example/debian"},
		{"one-line", map[string]string{"sources.list": "deb http://m.example/debian trixie main contrib\n"}, "http://m.example/debian"},
		{"options", map[string]string{"sources.list": "deb\t[arch=amd64 signed-by=/k/debian-archive-keyring.gpg]\thttps://m.example/x/ stable  main\n"}, "https://m.example/x"},
		{"sources.list before the rest", map[string]string{
			"sources.list":                  "deb http://first.example/debian bookworm main",
			"sources.list.d/other.list":     "deb http://second.example/debian bookworm main",
			"sources.list.d/ignored.backup": "deb http://third.example/debian bookworm main",
		}, "http://first.example/debian"},
		{"keyring beats guess", map[string]string{
			"sources.list":                  "deb http://third.example/debian bookworm main",
			"sources.list.d/debian.sources": bookwormSources,
		}, "http://mirror.example/debian"},
		{"third party with its own keyring", map[string]string{"sources.list": "deb [signed-by=/k/vendor.gpg] http://v.example/debian bookworm main"}, ""},
		{"third party with its own path", map[string]string{"sources.list": "deb http://v.example/linux bookworm main"}, ""},
		{"third party with its own suite", map[string]string{"sources.list": "deb https://v.example/debian tool-bookworm main"}, ""},
		{"third party with its own component", map[string]string{"sources.list": "deb https://v.example/debian bookworm stable"}, ""},
		{"security only", map[string]string{"sources.list": "deb http://s.example/debian trixie-security main"}, ""},
		{"source packages only", map[string]string{"sources.list": "deb-src http://s.example/debian trixie main"}, ""},
		{"commented out", map[string]string{"sources.list": "# deb http://s.example/debian trixie main"}, ""},
		{"not http", map[string]string{"sources.list": "deb cdrom:[Debian]/ trixie main\ndeb file:/debian trixie main\ndeb tor+http://x.example/debian trixie main"}, ""},
		{"disabled", map[string]string{"sources.list.d/a.sources": "Enabled: no\n" + bookwormSources[strings.Index(bookwormSources, "Types"):strings.Index(bookwormSources, "\n\n")+1]}, ""},
		{"windows line ends", map[string]string{"sources.list.d/debian.sources": strings.ReplaceAll(bookwormSources, "\n", "\r\n")}, "http://mirror.example/debian"},
		{"several URIs, folded", map[string]string{"sources.list.d/a.sources": "Types: deb deb-src\nURIs:\n ftp://a.example/debian\n https://b.example/debian\nSuites: sid\nComponents: main non-free\n"}, "https://b.example/debian"},
		{"malformed", map[string]string{"sources.list": "deb [unclosed http://x/ debian\ndeb\ndeb x\n[]\n", "sources.list.d/x.sources": ":::\n\n \n"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			etc := fstest.MapFS{}
			for name, text := range test.files {
				etc[name] = &fstest.MapFile{Data: []byte(text)}
			}
			got, err := FindMirror("", func(string) string { return "" }, etc)
			if got != test.want || (err == nil) != (test.want != "") {
				t.Fatalf("got %q, %v, want %q", got, err, test.want)
			}
			if err != nil {
				checkHint(t, err, ErrNoMirror)
			}
		})
	}
}

// checkHint wants an error of a kind, with advice.
func checkHint(t *testing.T, err, kind error) {
	t.Helper()
	var hint interface{ Hint() string }
	if !errors.Is(err, kind) || !errors.As(err, &hint) || hint.Hint() == "" {
		t.Errorf("error %v: want one of kind %q with a hint", err, kind)
	}
}

func TestFindMirrorOrder(t *testing.T) {
	etc := fstest.MapFS{"sources.list": &fstest.MapFile{Data: []byte("deb http://apt.example/debian stable main")}}
	for _, test := range []struct{ option, env, want string }{
		{"http://option.example/d/", "http://env.example/d", "http://option.example/d"},
		{"", "https://env.example/d//", "https://env.example/d"},
		{"", "", "http://apt.example/debian"},
		{"option.example", "http://env.example/d", ""},
		{"", "file:///d", ""},
	} {
		got, err := FindMirror(test.option, func(name string) string {
			if name != MirrorEnv {
				t.Errorf("asked for %s", name)
			}
			return test.env
		}, etc)
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("option %q, environment %q: got %q, %v", test.option, test.env, got, err)
		}
		if err != nil {
			checkHint(t, err, ErrNoMirror)
		}
	}
}

func FuzzParseSources(f *testing.F) {
	f.Add(true, bookwormSources)
	f.Add(false, "deb [a=b signed-by=x] http://m.example/debian trixie main # c\n")
	f.Fuzz(func(t *testing.T, deb822 bool, text string) {
		name := "x.list"
		if deb822 {
			name = "x.sources"
		}
		if mirror := pickMirror(ParseSources(name, text)); mirror != "" {
			if err := checkMirror(mirror); err != nil || !strings.Contains(text, mirror) {
				t.Fatalf("picked %q: %v", mirror, err)
			}
		}
	})
}
