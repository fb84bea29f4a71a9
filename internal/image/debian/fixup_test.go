package debian

import (
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/forkd-dev/forkd/internal/image/debian/debiantest"
)

func TestFixup(t *testing.T) {
	file := func(name, body string) debiantest.Entry { return debiantest.File("./"+name, body, 0o644) }
	base := debiantest.Package{Name: "base", Data: []debiantest.Entry{
		file("usr/share/base-passwd/passwd.master", "root:*:0:0:root:/root:/bin/bash\ndaemon:*:1:1::/:/bin/false\n"),
		file("usr/share/base-passwd/group.master", "root:*:0:\nshadow:*:42:\n"),
		file("usr/share/libc-bin/nsswitch.conf", "hosts: files dns\n"),
		file("usr/share/pam/common-auth", "$auth"),
		file("usr/share/zoneinfo/Etc/UTC", "TZif"),
		file("usr/share/ca-certificates/mozilla/B.crt", "-B-\n\n"),
		file("usr/share/ca-certificates/mozilla/A.crt", "-A-"),
		file("usr/share/ca-certificates/mozilla/readme.txt", "no"),
		file("usr/bin/pip3", ""),
		file("etc/skel/.profile", "skeleton\n"),
		file("etc/sudoers.d/README", "none\n"),
		file("lib/before-merge", ""),
		file("etc/hosts", "own\n"),
		debiantest.Dir("./var/run/", 0o755),
		debiantest.Dir("./tmp/", 0o755),
	}}
	mawk := debiantest.Package{
		Name: "mawk", Fields: map[string]string{"Multi-Arch": "same"},
		Data: []debiantest.Entry{file("usr/bin/mawk", "m")},
		Scripts: map[string]string{"postinst": `#!/bin/sh
update-alternatives --install /usr/bin/awk awk /usr/bin/mawk 5 \
	--slave /usr/share/man/man1/awk.1.gz awk.1.gz /usr/share/man/man1/mawk.1.gz \
	--slave /usr/bin/nawk nawk /usr/bin/mawk
update-alternatives --install /usr/bin/editor editor /usr/bin/missing 100
`},
	}
	got, installed := tree(t, base, mawk)
	now := time.Unix(1700000000, 0)
	if err := Fixup(got, installed, now); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"etc/passwd":                          "root:*:0:0:root:/root:/bin/bash\ndaemon:*:1:1::/:/bin/false\nuser:*:1000:1000::/home/user:/bin/bash\n",
		"etc/group":                           "root:*:0:\nshadow:*:42:\nuser:*:1000:\n",
		"etc/shadow":                          "root:*:19000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\nuser:*:19000:0:99999:7:::\n",
		"etc/gshadow":                         "root:*::\nshadow:*::\nuser:*::\n",
		"home/user/.profile":                  "skeleton\n",
		"etc/sudoers.d/user":                  "user ALL=(ALL:ALL) NOPASSWD: ALL\n",
		"etc/profile":                         profile,
		"etc/nsswitch.conf":                   "hosts: files dns\n",
		"etc/hosts":                           "own\n",
		"etc/localtime":                       "TZif",
		"etc/ssl/certs/ca-certificates.crt":   "-A-\n-B-\n",
		"etc/ssl/certs/B.pem":                 "-B-\n\n",
		"etc/pip.conf":                        "[global]\nbreak-system-packages = true\n",
		"usr/bin/awk":                         "m",
		"bin/nawk":                            "m",
		"var/lib/dpkg/status":                 "Package: base\nStatus: install ok installed\nVersion: 1\nMulti-Arch: \n\nPackage: mawk\nStatus: install ok installed\nVersion: 1\nMulti-Arch: same\n\n",
		"var/lib/dpkg/info/mawk:riscv64.list": "/usr/bin/mawk\n",
	} {
		if text := contents(t, got, name); text != want {
			t.Errorf("%s is %q, want %q", name, text, want)
		}
	}
	for _, name := range []string{"home/user", "home/user/.profile"} {
		if node, err := got.Lstat(name); err != nil || node.UID != 1000 || node.GID != 1000 {
			t.Errorf("%s: %+v, %v, want it to be the user's", name, node, err)
		}
	}
	for name, want := range map[string]fs.FileMode{
		"root": fs.ModeDir | 0o700, "tmp": fs.ModeDir | fs.ModeSticky | 0o777, "var/tmp": fs.ModeDir | fs.ModeSticky | 0o777,
		"home/user": fs.ModeDir | 0o755, "etc/shadow": 0o640, "proc": fs.ModeDir | 0o755, "var/mail": fs.ModeDir | fs.ModeSetgid | 0o775,
	} {
		if node, err := got.Lstat(name); err != nil || node.Mode != want {
			t.Errorf("%s: %+v, %v, want mode %v", name, node, err, want)
		}
	}
	for name, want := range map[string]string{
		"bin": "usr/bin", "sbin": "usr/sbin", "var/run": "/run", "etc/mtab": "../proc/self/mounts",
		"etc/alternatives/awk": "/usr/bin/mawk", "usr/bin/awk": "/etc/alternatives/awk",
	} {
		if node, err := got.Lstat(name); err != nil || node.Target != want {
			t.Errorf("%s: %+v, %v, want a link to %s", name, node, err, want)
		}
	}
	for _, name := range []string{"etc/alternatives/editor", "usr/bin/editor", "etc/alternatives/awk.1.gz", "lib64"} {
		if node, err := got.Lstat(name); err == nil {
			t.Errorf("%s exists: %+v", name, node)
		}
	}
	for name, node := range got.All() {
		if name == "etc/alternatives/awk" && !node.ModTime.Equal(now) {
			t.Errorf("%s has time %v", name, node.ModTime)
		}
	}
}

func TestParseAlternatives(t *testing.T) {
	for _, test := range []struct{ name, script, want string }{
		{"none", "#!/bin/sh\nexit 0\n", ""},
		{"plain", "update-alternatives --install /usr/bin/pager pager /usr/bin/less 77", "/usr/bin/pager=/usr/bin/less@77"},
		{"options and quotes", `  update-alternatives --quiet --install "/usr/bin/cc" cc '/usr/bin/gcc' 20 || true`, "/usr/bin/cc=/usr/bin/gcc@20"},
		{"negative priority", "update-alternatives --install /a a /b -5", "/a=/b@-5"},
		{"variables", `for i in vi view; do update-alternatives --install /usr/bin/$i $i /usr/bin/vim.basic 30; done`, ""},
		{"removal", "update-alternatives --remove awk /usr/bin/mawk", ""},
		{"too few words", "update-alternatives --install /a a", ""},
		{"no number", "update-alternatives --install /a a /b high", ""},
		{"relative", "update-alternatives --install a a b 1", ""},
		{"climbing name", "update-alternatives --install /a ../../x /b 1", ""},
		{"two", "update-alternatives --install /a a /b 1\nupdate-alternatives --install /c c /d 2\n", "/a=/b@1 /c=/d@2"},
	} {
		var got []string
		for _, a := range parseAlternatives(test.script) {
			got = append(got, strings.Join([]string{a.link, "=", a.path, "@", strconv.Itoa(a.priority)}, ""))
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: %v, want %q", test.name, got, test.want)
		}
	}
}

func TestBestAlternative(t *testing.T) {
	file := func(name, body string) debiantest.Entry { return debiantest.File("./"+name, body, 0o755) }
	got, _ := tree(t, debiantest.Package{Data: []debiantest.Entry{file("usr/bin/low", "low"), file("usr/bin/high", "high"), file("usr/bin/own", "own")}})
	f := &fixer{tree: got}
	f.alternatives([]alternative{
		{link: "/usr/bin/x", name: "x", path: "/usr/bin/low", priority: 1},
		{link: "/usr/bin/x", name: "x", path: "/usr/bin/gone", priority: 99},
		{link: "/usr/bin/x", name: "x", path: "/usr/bin/high", priority: 50},
		{link: "/usr/bin/own", name: "own", path: "/usr/bin/low", priority: 50},
	})
	if f.err != nil {
		t.Fatal(f.err)
	}
	if text := contents(t, got, "usr/bin/x"); text != "high" {
		t.Errorf("x is %q", text)
	}
	if text := contents(t, got, "usr/bin/own"); text != "own" {
		t.Errorf("a package's own file became %q", text)
	}
}

func TestFields(t *testing.T) {
	const text = "\n\nA: 1\n# no: field\nB:\n  x\n y: z\n\nC : 2\nbroken\nD:4"
	var got []string
	for stanza := range stanzas(text) {
		for name, value := range fields(stanza) {
			got = append(got, name+"="+value)
		}
		got = append(got, "|")
	}
	if want := []string{"A=1", "B=x\n y: z", "|", "C =2", "D=4", "|"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
