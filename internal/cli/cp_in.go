package cli

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
)

// in copies what is at a path here.
func (x *copying) in(ctx context.Context, from, to string) error {
	if from == standard {
		return x.write(ctx, x.io.In, "standard input", 0, to, 0o644)
	}
	s, err := os.Stat(from)
	if err != nil {
		return err
	}
	into, err := x.isDir(ctx, to)
	if err != nil {
		return err
	}
	if into && !isContents(from) {
		whole, err := filepath.Abs(from)
		if err != nil {
			return err
		}
		to, into = path.Join(to, filepath.Base(whole)), false
	}
	switch {
	case s.IsDir():
		return x.sendTree(ctx, from, to, into)
	case !into && strings.HasSuffix(to, "/"):
		return x.noDirectory(path.Clean(to))
	}
	return x.send(ctx, from, s, to)
}

// sendTree copies what is in a directory here into one of the sandbox, which is made unless
// it is there. Directories have their permissions from the start, so a private one is never
// open; root, who writes there, is kept out by none.
func (x *copying) sendTree(ctx context.Context, from, to string, there bool) error {
	from, err := filepath.EvalSymlinks(from)
	if err != nil {
		return err
	}
	return filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		at := path.Join(to, filepath.ToSlash(below))
		s, err := d.Info()
		if err != nil {
			return err
		}
		switch mode := s.Mode().Perm(); {
		case name == from && there:
			return nil
		case name == from:
			return x.makeTop(ctx, at, mode)
		case d.IsDir():
			return x.c.MakeDir(ctx, x.box, at, client.MakeDirOptions{Parents: true, Mode: &mode})
		case d.Type() == fs.ModeSymlink:
			return x.link(ctx, name, at)
		}
		return x.send(ctx, name, s, at)
	})
}

// makeTop makes the directory that a tree is copied to, but none above it: a path with a typing
// error in it is no reason to make directories.
func (x *copying) makeTop(ctx context.Context, at string, mode fs.FileMode) error {
	err := x.c.MakeDir(ctx, x.box, at, client.MakeDirOptions{Mode: &mode})
	if client.IsCode(err, api.ErrorCodeAlreadyExists) {
		if there, statErr := x.isDir(ctx, at); statErr != nil || there {
			return statErr
		}
		return fmt.Errorf("%s:%s is there and no directory", x.box, at)
	}
	return x.orNoDirectory(ctx, err, path.Dir(at))
}

// orNoDirectory explains an error if it is that a directory of the sandbox is not there.
func (x *copying) orNoDirectory(ctx context.Context, err error, dir string) error {
	if client.IsCode(err, api.ErrorCodeNotFound) {
		if there, statErr := x.isDir(ctx, dir); statErr == nil && !there {
			return x.noDirectory(dir)
		}
	}
	return err
}

func (x *copying) noDirectory(dir string) error {
	return &hinted{fmt.Errorf("there is no directory %s in sandbox %s", dir, x.box), fmt.Sprintf("forkd exec -c %s -- mkdir -p %s", x.box, dir)}
}

// isDir reports whether a path in the sandbox is that of a directory, or of a link to one.
func (x *copying) isDir(ctx context.Context, at string) (bool, error) {
	info, err := x.c.StatFile(ctx, x.box, at)
	switch {
	case client.IsCode(err, api.ErrorCodeNotFound):
		if _, boxErr := x.c.Sandbox(ctx, x.box); boxErr != nil {
			return false, boxErr
		}
		return false, nil
	case err != nil:
		return false, err
	case info.Type == api.FileInfoTypeSymlink:
		_, err := x.c.ListFiles(ctx, x.box, at)
		return err == nil, nil
	}
	return info.Type == api.FileInfoTypeDir, nil
}

// send copies a file from here.
func (x *copying) send(ctx context.Context, from string, s fs.FileInfo, to string) error {
	if !s.Mode().IsRegular() {
		x.left = append(x.left, from)
		return nil
	}
	file, err := os.Open(from)
	if err != nil {
		return err
	}
	defer file.Close()
	return x.write(ctx, file, from, s.Size(), to, s.Mode().Perm())
}

// write makes a file in the sandbox.
func (x *copying) write(ctx context.Context, r io.Reader, name string, size int64, to string, mode fs.FileMode) error {
	body := x.reader(r, name, size)
	err := x.c.WriteFile(ctx, x.box, to, body, client.WriteOptions{Mode: &mode})
	x.bytes += body.n
	return x.orNoDirectory(ctx, err, path.Dir(to))
}

// link makes a symbolic link in the sandbox like the one here.
func (x *copying) link(ctx context.Context, from, to string) error {
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	x.files++
	req := client.ExecRequest{Args: []string{"ln", "-sfnT", "--", target, to}}
	if !utf8.ValidString(target + to) { // which arguments in JSON have to be
		req.Args = []string{"xargs", "-0", "ln", "-sfnT", "--"}
		req.StdinB64 = []byte(target + "\x00" + to + "\x00")
	}
	out, err := x.c.Exec(ctx, x.box, req)
	if err == nil && out.ExitCode != 0 {
		err = fmt.Errorf("making the link %s: %s", to, strings.TrimSpace(out.Stderr))
	}
	return err
}
