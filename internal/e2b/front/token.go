package front

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"strings"
)

// Operations that a URL can be signed for.
const (
	Read  = "read"
	Write = "write"
)

// NewToken returns 256 random bits in hexadecimal.
func NewToken() string {
	var b [32]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// Same compares two secrets; the time it takes tells nothing about where they
// differ, nor how long want is.
func Same(given, want string) bool {
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

const signaturePrefix = "v1_"

// Signature signs an operation on a file with a sandbox's token. user and
// expiration are as in the URL, and may be empty.
func Signature(path, operation, user, token, expiration string) string {
	text := path + ":" + operation + ":" + user + ":" + token
	if expiration != "" {
		text += ":" + expiration
	}
	sum := sha256.Sum256([]byte(text))
	return signaturePrefix + base64.RawStdEncoding.EncodeToString(sum[:])
}

// IsSignature reports whether s has the form of a signature.
func IsSignature(s string) bool {
	text, ok := strings.CutPrefix(s, signaturePrefix)
	return ok && len(text) == base64.RawStdEncoding.EncodedLen(sha256.Size)
}
