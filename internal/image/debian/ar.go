package debian

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const (
	arMagic  = "!<arch>\n"
	arHeader = 60 // bytes before each member
)

// members calls fn for each member of the ar archive that a .deb is, in order,
// until fn reports that it is done. The first member must be debian-binary with
// format version 2; fn does not see it.
func members(deb io.Reader, fn func(name string, body io.Reader) (done bool, err error)) error {
	r := bufio.NewReaderSize(deb, 256<<10)
	magic := make([]byte, len(arMagic))
	if _, err := io.ReadFull(r, magic); err != nil || string(magic) != arMagic {
		return fmt.Errorf("%w package: not an ar archive", ErrFormat)
	}
	for first := true; ; first = false {
		name, size, err := nextMember(r)
		if err != nil {
			return err
		}
		body := io.LimitReader(r, size)
		done := false
		if first {
			err = checkVersion(name, body)
		} else {
			done, err = fn(name, body)
		}
		if done || err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, body); err != nil {
			return fmt.Errorf("reading the package: %w", err)
		}
		if size%2 == 1 {
			// Members start at even offsets; a missing last byte shows in the next header.
			if _, err := r.Discard(1); err != nil && err != io.EOF {
				return fmt.Errorf("reading the package: %w", err)
			}
		}
	}
}

func checkVersion(name string, body io.Reader) error {
	version, err := io.ReadAll(io.LimitReader(body, 16))
	if err != nil || name != "debian-binary" || !bytes.HasPrefix(version, []byte("2.")) {
		return fmt.Errorf("%w package: not of format 2", ErrFormat)
	}
	return nil
}

// nextMember reads a member's header: name[16] mtime[12] uid[6] gid[6] mode[8]
// size[10] and two magic bytes, all text padded with blanks. The end of the
// archive is an error, because no reader of a whole package gets there.
func nextMember(r io.Reader) (name string, size int64, err error) {
	header := make([]byte, arHeader)
	if _, err := io.ReadFull(r, header); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return "", 0, fmt.Errorf("%w package: no data archive in it", ErrFormat)
		}
		return "", 0, fmt.Errorf("reading the package: %w", err)
	}
	size, err = strconv.ParseInt(strings.TrimRight(string(header[48:58]), " "), 10, 64)
	if err != nil || size < 0 || string(header[58:]) != "`\n" {
		return "", 0, fmt.Errorf("%w package: ar member header %.60q", ErrFormat, header)
	}
	return strings.TrimRight(strings.TrimRight(string(header[:16]), " "), "/"), size, nil
}
