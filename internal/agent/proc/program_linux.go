package proc

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// DefaultPath is the search path of a command whose environment names none.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// FindProgram resolves the program name as a shell started in dir with the search path would. The error is a *wire.Error
// whose field is "argv".
func FindProgram(name, path, dir string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, checkProgram(name)
	}
	if path == "" {
		path = DefaultPath
	}
	var refused error
	for d := range strings.SplitSeq(path, ":") {
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		candidate := filepath.Join(d, name)
		err := checkProgram(candidate)
		if err == nil {
			return candidate, nil
		}
		if wire.AsError(err).Code != wire.CodeNotFound && refused == nil {
			refused = err
		}
	}
	if refused != nil {
		return "", refused
	}
	return "", wire.Errorf(wire.CodeNotFound, "argv", "program %q is not in PATH (%s)", name, path)
}

// checkProgram tells the common mistakes apart before a fork; the kernel has the last word.
func checkProgram(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return wire.Errorf(wire.CodeNotFound, "argv", "program %q does not exist", path)
	case err != nil:
		return StartError(err, path, "")
	case info.IsDir():
		return wire.Errorf(wire.CodeNotExecutable, "argv", "%q is a directory, not a program", path)
	case info.Mode()&0o111 == 0:
		return wire.Errorf(wire.CodePermission, "argv", "%q is not marked as executable", path)
	}
	return nil
}

// CheckDir tells whether dir can be a working directory. The error is a *wire.Error whose field is "cwd".
func CheckDir(dir string) error {
	if !filepath.IsAbs(dir) {
		return wire.Errorf(wire.CodeBadRequest, "cwd", "working directory %q is not an absolute path", dir)
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, unix.ENOENT):
		return wire.Errorf(wire.CodeNotFound, "cwd", "working directory %q does not exist", dir)
	case err != nil:
		return wire.Errorf(wire.CodeInternal, "cwd", "working directory %q: %v", dir, err)
	case !info.IsDir():
		return wire.Errorf(wire.CodeNotDirectory, "cwd", "working directory %q is not a directory", dir)
	}
	return nil
}

// StartError turns the error of a failed start into a *wire.Error.
func StartError(err error, path, dir string) error {
	code, why := wire.CodeInternal, err.Error()
	switch {
	case errors.Is(err, ErrHeld):
		return wire.Errorf(wire.CodeQuiesced, "", "%v: refresh or resume first", ErrHeld)
	case errors.Is(err, unix.E2BIG):
		return wire.Errorf(wire.CodeTooLong, "argv", "argument list too long: the kernel takes 128 KiB for one argument or variable and about 2 MiB in all; pass large data on stdin or in a file")
	case errors.Is(err, unix.ENAMETOOLONG):
		code = wire.CodeTooLong
	case errors.Is(err, unix.ENOENT):
		// The file was there a moment ago: what is missing is what its first line or header names.
		code, why = wire.CodeNotFound, "its interpreter does not exist"
	case errors.Is(err, unix.ENOEXEC):
		code, why = wire.CodeNotExecutable, "not a program for this machine, nor a script that starts with #!"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		code, why = wire.CodePermission, "permission denied"
		if dir != "" {
			why += " (to run it, or to enter " + dir + ")"
		}
	case errors.Is(err, unix.ELOOP):
		code = wire.CodeTooManyLinks
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		code = wire.CodeExhausted
	}
	return wire.Errorf(code, "argv", "starting %q: %s", path, why)
}
