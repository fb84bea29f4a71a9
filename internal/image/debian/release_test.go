package debian

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"

	"github.com/forkd-dev/forkd/internal/image/debian/debiantest"
)

const releaseText = `Origin: Debian
Codename: trixie
Version: 13.1
Date: Sat, 06 Sep 2025 10:00:00 UTC
Acquire-By-Hash: yes
MD5Sum:
 d41d8cd98f00b204e9800998ecf8427e 1 main/binary-riscv64/Packages.xz
SHA256:
 %064d 17 main/binary-riscv64/Packages.xz
`

func TestOpenRelease(t *testing.T) {
	a := debiantest.New(t, debiantest.Options{})
	text := fmt.Sprintf(releaseText, 7)
	signed := debiantest.Sign(t, a.Keys[0], text)
	// Read a little later than it was signed, and than all that is signed below:
	// signatures have a resolution of one second.
	now := time.Now().Add(time.Minute)
	r, err := openRelease(signed, a.Keys, now)
	if err != nil {
		t.Fatal(err)
	}
	list := r.files["main/binary-riscv64/Packages.xz"]
	if r.codename != "trixie" || r.version != "13.1" || !r.byHash || list.size != 17 || list.sha256 != fmt.Sprintf("%064d", 7) || r.date.Unix() != 1757152800 {
		t.Errorf("release is %+v", r)
	}

	other := debiantest.New(t, debiantest.Options{})
	expired := debiantest.Sign(t, a.Keys[0], text+"Valid-Until: Sun, 07 Sep 2025 10:00:00 UTC\n")
	future := debiantest.Sign(t, a.Keys[0], strings.Replace(text, "2025", fmt.Sprint(now.Year()+1), 1))
	archive, err := ArchiveKeys()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		data []byte
		keys openpgp.EntityList
		want error
	}{
		{"changed text", bytes.Replace(signed, []byte(" 17 "), []byte(" 18 "), 1), a.Keys, ErrSignature},
		{"other key", signed, other.Keys, ErrSignature},
		{"debian's keys", signed, archive, ErrSignature},
		{"not signed", []byte(text), a.Keys, ErrSignature},
		{"a web page", []byte("<html>log in</html>"), a.Keys, ErrSignature},
		{"unsigned text before", append([]byte("Codename: evil\n"), signed...), a.Keys, ErrSignature},
		{"unsigned text after", append(bytes.Clone(signed), "Codename: evil\n"...), a.Keys, ErrSignature},
		{"cut", signed[:len(signed)-60], a.Keys, ErrSignature},
		{"empty", nil, a.Keys, ErrSignature},
		{"expired", expired, a.Keys, ErrExpired},
		{"from the future", future, a.Keys, ErrExpired},
		{"no hashes", debiantest.Sign(t, a.Keys[0], text[:strings.Index(text, "SHA256")]), a.Keys, ErrFormat},
		{"bad date", debiantest.Sign(t, a.Keys[0], strings.Replace(text, "Sat, 06", "someday", 1)), a.Keys, ErrFormat},
		{"bad line", debiantest.Sign(t, a.Keys[0], text+" 12 34\n"), a.Keys, ErrFormat},
		{"bad size", debiantest.Sign(t, a.Keys[0], strings.Replace(text, " 17 main", " -17 main", 1)), a.Keys, ErrFormat},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := openRelease(test.data, test.keys, now); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

func TestArchiveKeys(t *testing.T) {
	keys, err := ArchiveKeys()
	if err != nil {
		t.Fatal(err)
	}
	var prints []string
	for _, key := range keys {
		prints = append(prints, fmt.Sprintf("%X", key.PrimaryKey.Fingerprint))
	}
	// As published by Debian for trixie.
	want := "04B54C3CDCA79751B16BC6B5225629DF75B188BD 41587F7DB8C774BCCF131416762F67A0B2C39DE4"
	if got := strings.Join(prints, " "); got != want {
		t.Errorf("keys %s, want %s", got, want)
	}
}

func FuzzRelease(f *testing.F) {
	f.Add(fmt.Sprintf(releaseText, 1))
	f.Add("SHA256:\n 00 1 x\n")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseRelease(text)
		if err != nil {
			return
		}
		for path, file := range r.files {
			if !isSHA256(file.sha256) || file.size < 0 || path == "" {
				t.Fatalf("accepted %q: %+v", path, file)
			}
		}
	})
}

func FuzzVerify(f *testing.F) {
	a := debiantest.New(f, debiantest.Options{})
	signed := debiantest.Sign(f, a.Keys[0], "Codename: x\n")
	f.Add(signed)
	f.Add([]byte("-----BEGIN PGP SIGNED MESSAGE-----\n\n-----BEGIN PGP SIGNATURE-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		text, err := verify(data, a.Keys, time.Now())
		// Line ends and blanks at the end of lines are not part of what is signed.
		if err == nil && strings.TrimSpace(text) != "Codename: x" {
			t.Fatalf("accepted %q", text)
		}
	})
}
