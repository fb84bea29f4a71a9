package files

import (
	"errors"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// attrPrefix is the namespace of the attributes that are read and written here. In others, attributes have a meaning for the
// kernel.
const attrPrefix = "user."

// maxAttrs is how many bytes of attributes are read of a file; the kernel's own limit for one value and for all names.
const maxAttrs = 64 << 10

// readAttrs reads the attributes of entry in the directory dir, or of the file dir itself when entry is empty. What cannot be
// read is left out: there is no such attribute for whoever asks. So is what exceeds maxAttrs, and what has a name that is not
// UTF-8.
func readAttrs(dir int, entry string) map[string]wire.Name {
	name, list, get := procPath(dir), unix.Listxattr, unix.Getxattr
	if entry != "" {
		name, list, get = name+"/"+entry, unix.Llistxattr, unix.Lgetxattr
	}
	names, err := readAll(func(b []byte) (int, error) { return list(name, b) })
	if err != nil || len(names) == 0 {
		return nil
	}
	var attrs map[string]wire.Name
	left := maxAttrs
	for attr := range strings.SplitSeq(string(names), "\x00") {
		key, ours := strings.CutPrefix(attr, attrPrefix)
		if !ours || key == "" || !utf8.ValidString(key) {
			continue
		}
		value, err := readAll(func(b []byte) (int, error) { return get(name, attr, b) })
		if left -= len(key) + len(value); err != nil || left < 0 {
			continue
		}
		if attrs == nil {
			attrs = make(map[string]wire.Name)
		}
		attrs[key] = wire.Name(value)
	}
	return attrs
}

// readAll calls read with a buffer that is large enough. Most attributes are short.
func readAll(read func([]byte) (int, error)) ([]byte, error) {
	var few [256]byte
	n, err := read(few[:])
	if !errors.Is(err, unix.ERANGE) {
		return few[:max(n, 0)], err
	}
	b := make([]byte, maxAttrs)
	n, err = read(b)
	return b[:max(n, 0)], err
}

// checkAttrs tells what is wrong with attributes before anything is written.
func checkAttrs(attrs map[string]wire.Name) error {
	size := 0
	for key, value := range attrs {
		if size += len(key) + len(value); size > maxAttrs {
			return wire.Errorf(wire.CodeTooLong, "attrs", "the attributes have more than %d bytes in all", maxAttrs)
		}
		if key == "" || strings.IndexByte(key, 0) >= 0 {
			return wire.Errorf(wire.CodeBadRequest, "attrs", "%q cannot be the name of an attribute", key)
		}
	}
	return nil
}

// writeAttrs sets attributes of an open file.
func writeAttrs(fd int, attrs map[string]wire.Name) error {
	for key, value := range attrs {
		err := unix.Fsetxattr(fd, attrPrefix+key, []byte(value), 0)
		switch {
		case errors.Is(err, unix.EOPNOTSUPP):
			return wire.Errorf(wire.CodeBadRequest, "attrs", "the file system keeps no attributes")
		case errors.Is(err, unix.ERANGE), errors.Is(err, unix.E2BIG):
			return wire.Errorf(wire.CodeTooLong, "attrs", "attribute %q is too long for the file system", key)
		case err != nil:
			return err
		}
	}
	return nil
}
