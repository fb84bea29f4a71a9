package proc

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

const (
	passwd = `# comment
root:x:0:0:root:/root:/bin/bash
ann:x:1000:1000:Ann,,,:/home/ann:/bin/sh
broken:x:1001
nonsense:x:abc:1:::
2000:x:7:8::/home/digits:/bin/sh
huge:x:4294967295:1::/:
`
	group = `root:x:0:
ann:x:1000:
video:x:44:bob,ann
audio:x:29:ann
broken:x
again:x:44:ann
`
)

func accounts(passwd, group string) Accounts {
	return Accounts{Open: func(path string) (io.ReadCloser, error) {
		text := map[string]string{passwdPath: passwd, groupPath: group}[path]
		if text == "" {
			return nil, os.ErrNotExist
		}
		return io.NopCloser(strings.NewReader(text)), nil
	}}
}

func TestLookup(t *testing.T) {
	for _, tc := range []struct {
		spec string
		want User
		code wire.Code
	}{
		{"", User{Credentials{0, 0, []uint32{0}}, "root", "/root", "/bin/bash"}, ""},
		{"ann", User{Credentials{1000, 1000, []uint32{1000, 44, 29}}, "ann", "/home/ann", "/bin/sh"}, ""},
		{"1000", User{Credentials{1000, 1000, []uint32{1000, 44, 29}}, "ann", "/home/ann", "/bin/sh"}, ""},
		{"ann:video", User{Credentials{1000, 44, []uint32{44}}, "ann", "/home/ann", "/bin/sh"}, ""},
		{"ann:5", User{Credentials{1000, 5, []uint32{5}}, "ann", "/home/ann", "/bin/sh"}, ""},
		{"77", User{Credentials{77, 77, []uint32{77}}, "77", "/", ""}, ""},
		{"2000", User{Credentials{7, 8, []uint32{8}}, "2000", "/home/digits", "/bin/sh"}, ""},
		{"bob", User{}, wire.CodeNoSuchUser},
		{"broken", User{}, wire.CodeNoSuchUser},
		{"nonsense", User{}, wire.CodeNoSuchUser},
		{"huge", User{}, wire.CodeNoSuchUser},
		{"4294967295", User{}, wire.CodeNoSuchUser},
		{"-1", User{}, wire.CodeNoSuchUser},
		{"ann:nobody", User{}, wire.CodeNoSuchUser},
		{"ann:", User{}, wire.CodeNoSuchUser},
	} {
		got, err := accounts(passwd, group).Lookup(tc.spec)
		if tc.code != "" {
			if wire.AsError(err) == nil || wire.AsError(err).Code != tc.code {
				t.Errorf("%q: %+v, %v; want %s", tc.spec, got, err, tc.code)
			}
			continue
		}
		if err != nil || got.UID != tc.want.UID || got.GID != tc.want.GID || !slices.Equal(got.Groups, tc.want.Groups) ||
			got.Name != tc.want.Name || got.Home != tc.want.Home || got.Shell != tc.want.Shell {
			t.Errorf("%q: %+v, %v; want %+v", tc.spec, got, err, tc.want)
		}
	}
	if u, err := accounts("", "").Lookup("root"); err != nil || u.UID != 0 {
		t.Errorf("root without account files: %+v, %v", u, err)
	}
	if _, err := accounts("", "").Lookup("ann"); wire.AsError(err) == nil || wire.AsError(err).Code != wire.CodeNoSuchUser {
		t.Errorf("ann without account files: %v", err)
	}
}

func TestFindProgram(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"a/tool": 0o644, "b/tool": 0o755, "a/data": 0o644, "c/here": 0o755} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	path := dir + "/none:" + dir + "/a:" + dir + "/b:"
	for _, tc := range []struct {
		name, want string
		code       wire.Code
	}{
		{"tool", dir + "/b/tool", ""},
		{"here", dir + "/c/here", ""}, // an empty entry of PATH is the working directory
		{"./here", dir + "/c/here", ""},
		{"../b/tool", dir + "/b/tool", ""},
		{"data", "", wire.CodePermission},
		{"nothing", "", wire.CodeNotFound},
		{dir + "/a", "", wire.CodeNotExecutable},
		{dir + "/b/tool/x", "", wire.CodeNotFound},
	} {
		got, err := FindProgram(tc.name, path, dir+"/c")
		if tc.code == "" && (err != nil || got != tc.want) || tc.code != "" && (err == nil || wire.AsError(err).Code != tc.code) {
			t.Errorf("%s: %q, %v; want %q %s", tc.name, got, err, tc.want, tc.code)
		}
	}
}

func TestEnvironment(t *testing.T) {
	user := User{Name: "ann", Home: "/home/ann", Shell: "/bin/sh"}
	env, err := environment(user, []string{"LANG=C", "PATH=/x"}, wire.Names("LANG=D", "NEW=", "HOMER=1"))
	want := []string{"PATH=/x", "HOME=/home/ann", "USER=ann", "LOGNAME=ann", "SHELL=/bin/sh", "LANG=D", "NEW=", "HOMER=1"}
	if err != nil || !slices.Equal(env, want) {
		t.Errorf("%q, %v; want %q", env, err, want)
	}
}

func TestStartErrorsAreTyped(t *testing.T) {
	if e := wire.AsError(StartError(ErrHeld, "", "")); e.Code != wire.CodeQuiesced {
		t.Error(e)
	}
	if e := wire.AsError(StartError(errors.New("strange"), "/x", "/")); e.Code != wire.CodeInternal || e.Field != "argv" {
		t.Error(e)
	}
}

// FuzzAccounts looks anybody up in any account files: it must neither fail nor find a number that the kernel takes for
// "leave it as it is".
func FuzzAccounts(f *testing.F) {
	f.Add(passwd, group, "ann:video")
	f.Add(":::::::\n", ":::\n", ":")
	f.Add("a:b:0:0:c:d:e", "a:b:0:a,a", "0:0")
	f.Fuzz(func(t *testing.T, passwd, group, spec string) {
		u, err := accounts(passwd, group).Lookup(spec)
		if err != nil {
			if wire.AsError(err).Code != wire.CodeNoSuchUser {
				t.Errorf("%v", err)
			}
			return
		}
		for _, id := range append(u.Groups, u.UID, u.GID) {
			if id == 1<<32-1 {
				t.Errorf("%q became %+v", spec, u)
			}
		}
	})
}
