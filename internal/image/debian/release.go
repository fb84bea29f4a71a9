package debian

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// archiveKeys is the public key material that signs Debian 13 (trixie):
//
//	04B54C3CDCA79751B16BC6B5225629DF75B188BD  archive automatic signing key (RSA 4096, expires 2035-03-28)
//	41587F7DB8C774BCCF131416762F67A0B2C39DE4  stable release key (Ed25519, expires 2033-03-22)
//
// It was taken from the debian-archive-keyring package. One good signature by
// either is enough.
//
//go:embed keys/trixie.asc
var archiveKeys []byte

// ArchiveKeys returns the embedded Debian archive keys.
func ArchiveKeys() (openpgp.EntityList, error) {
	keys, err := openpgp.ReadArmoredKeyRing(bytes.NewReader(archiveKeys))
	if err != nil {
		return nil, fmt.Errorf("reading the embedded archive keys: %w", err)
	}
	return keys, nil
}

// file is what a release says of one index file.
type file struct {
	sha256 string
	size   int64
}

// release is a verified InRelease file.
type release struct {
	codename, version string
	date, validUntil  time.Time // validUntil is zero when the release has no end
	byHash            bool
	files             map[string]file // by path below dists/<suite>/
	digest            string          // SHA-256 of the InRelease file, in hex
}

// openRelease verifies the signature of an InRelease file and parses it.
func openRelease(inRelease []byte, keys openpgp.EntityList, now time.Time) (*release, error) {
	text, err := verify(inRelease, keys, now)
	if err != nil {
		return nil, err
	}
	r, err := parseRelease(text)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(inRelease)
	r.digest = hex.EncodeToString(sum[:])
	return r, r.checkTime(now)
}

// verify returns the text that inRelease signs. Nothing outside the signed text
// is tolerated, so that no later step can read an unsigned line.
func verify(inRelease []byte, keys openpgp.EntityList, now time.Time) (string, error) {
	if !bytes.HasPrefix(inRelease, []byte("-----BEGIN PGP SIGNED MESSAGE-----")) {
		return "", withHint(fmt.Errorf("%w: the index is not a signed file; it begins %.40q", ErrSignature, inRelease),
			"the mirror, or something between it and this host, answers with other content; check the mirror's URL in a browser")
	}
	block, rest := clearsign.Decode(inRelease)
	if block == nil || len(bytes.TrimSpace(rest)) > 0 {
		return "", fmt.Errorf("%w: the index is damaged or has unsigned content", ErrSignature)
	}
	config := &packet.Config{Time: func() time.Time { return now }}
	if _, err := block.VerifySignature(keys, config); err != nil {
		return "", withHint(fmt.Errorf("%w of the index: %w", ErrSignature, err),
			"use a mirror of Debian itself and check this host's clock")
	}
	return string(block.Plaintext), nil
}

func parseRelease(text string) (*release, error) {
	r := &release{files: map[string]file{}}
	var err error
	for name, value := range fields(text) {
		switch name {
		case "Codename":
			r.codename = value
		case "Version":
			r.version = value
		case "Date":
			r.date, err = parseDate(value)
		case "Valid-Until":
			r.validUntil, err = parseDate(value)
		case "Acquire-By-Hash":
			r.byHash = value == "yes"
		case "SHA256":
			err = r.parseFiles(value)
		}
		if err != nil {
			return nil, fmt.Errorf("%w index: field %s: %w", ErrFormat, name, err)
		}
	}
	if r.codename == "" || r.date.IsZero() || len(r.files) == 0 {
		return nil, fmt.Errorf("%w index: Codename, Date or SHA256 is missing", ErrFormat)
	}
	return r, nil
}

func parseDate(value string) (time.Time, error) {
	return time.Parse(time.RFC1123, strings.Replace(value, "UTC", "GMT", 1))
}

// parseFiles reads lines of "hash size path".
func (r *release) parseFiles(value string) error {
	for line := range strings.Lines(value) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if len(words) != 3 {
			return fmt.Errorf("%d words in %.80q", len(words), line)
		}
		size, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil || size < 0 {
			return fmt.Errorf("size %.40q", words[1])
		}
		if !isSHA256(words[0]) {
			return fmt.Errorf("hash %.80q", words[0])
		}
		r.files[words[2]] = file{words[0], size}
	}
	return nil
}

func isSHA256(s string) bool {
	_, err := hex.DecodeString(s)
	return err == nil && len(s) == 2*sha256.Size && strings.ToLower(s) == s
}

// checkTime refuses an index that its signers have given up, and one from the
// future, which means that this host's clock is wrong. An index is allowed to
// be a day ahead.
func (r *release) checkTime(now time.Time) error {
	if !r.validUntil.IsZero() && now.After(r.validUntil) {
		return withHint(fmt.Errorf("%w: it expired on %s", ErrExpired, r.validUntil.Format(time.DateOnly)),
			"the mirror is out of date; use another one, or check this host's clock")
	}
	if r.date.After(now.Add(24 * time.Hour)) {
		return withHint(fmt.Errorf("%w: it is from %s, in the future", ErrExpired, r.date.Format(time.DateOnly)),
			"check this host's clock")
	}
	return nil
}
