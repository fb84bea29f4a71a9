package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
)

type copyOptions struct {
	f    *factory
	json bool
}

func newCp(f *factory) *cobra.Command {
	o := &copyOptions{f: f}
	cmd := &cobra.Command{
		Use:   "cp SOURCE DESTINATION",
		Short: "Copy files into a sandbox, or out of one",
		Long: `Copy a file, or a directory with all that is in it. One of the two is ID:PATH, an absolute
path in a sandbox, the other is a path here, or - for standard input or output. If
DESTINATION is a directory the copy goes into it, under its own name; of a directory that is
given as NAME/. only what is in it. Otherwise it is the name of the copy, in a directory that
exists. A local path with a colon is written ./a:b.

Files and directories keep their permissions, and belong to whom they are written by: in a
sandbox to root. A directory that is there already stays as it is. Symbolic links in a
directory are copied as such. Pipes, sockets and devices are not; that is an error once the
rest is copied.`,
		Example: `  forkd cp data.csv sb0123456789ab:/tmp/
  forkd cp sb0123456789ab:/var/log ./logs
  forkd cp sb0123456789ab:/etc/os-release -`,
		Args: exactly(2, "source and destination"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], args[1]) },
	}
	jsonFlag(cmd, &o.json)
	return cmd
}

// place is one side of a copy: a path here, or in a sandbox.
type place struct{ box, path string }

func parsePlace(arg string) place {
	if box, path, ok := strings.Cut(arg, ":"); ok && box != "" && !strings.ContainsAny(box, `/\.`) {
		return place{box, path}
	}
	return place{path: arg}
}

const standard = "-" // a path here: standard input or output

// isContents reports whether a path stands for what is in a directory.
func isContents(path string) bool { return path == "." || strings.HasSuffix(path, "/.") }

func (o *copyOptions) run(ctx context.Context, source, destination string) error {
	from, to := parsePlace(source), parsePlace(destination)
	switch {
	case (from.box == "") == (to.box == ""):
		return &usageError{msg: "one of SOURCE and DESTINATION has to be in a sandbox", hint: "for example: forkd cp data.csv sb0123456789ab:/tmp/; a path here with a colon is written ./a:b"}
	case o.json && to.box == "" && to.path == standard:
		return usagef("--json and - both want standard output")
	}
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	show := newProgress(o.f.io)
	defer show.end()
	x := &copying{c: c, box: from.box + to.box, io: o.f.io}
	if o.f.io.ErrTTY {
		x.show = show
	}
	if to.box != "" {
		err = x.in(ctx, from.path, to.path)
	} else {
		err = x.out(ctx, from.path, to.path)
	}
	show.end()
	if len(x.left) > 0 {
		err = errors.Join(err, fmt.Errorf("not copied, as they are no files: %s", strings.Join(x.left, ", ")))
	}
	if err == nil && o.json {
		err = o.f.io.json(map[string]any{"files": x.files, "bytes": x.bytes})
	}
	return err
}

// copying is a copy under way.
type copying struct {
	c     *client.Client
	box   string
	io    *Streams
	show  *progress // nil: not at all
	files int
	bytes int64
	left  []string // what cannot be copied
}

// reader counts what is read of a file. total is zero if it is not known.
func (x *copying) reader(r io.Reader, name string, total int64) *counted {
	x.files++
	return &counted{r: r, show: x.show, step: "copy", what: "copying " + name, total: total}
}

// out copies what is at a path in the sandbox.
func (x *copying) out(ctx context.Context, from, to string) error {
	if to == standard {
		return x.read(ctx, from, 0, x.io.Out)
	}
	info, err := x.c.StatFile(ctx, x.box, from)
	if err != nil {
		return err
	}
	s, err := os.Stat(to)
	if into := err == nil && s.IsDir(); into && !isContents(from) {
		name := path.Base(from)
		if !fs.ValidPath(name) || name == "." {
			return &usageError{msg: fmt.Sprintf("%s has no name of its own", from), hint: "name a destination that does not exist"}
		}
		to = filepath.Join(to, name)
	} else if !into && strings.HasSuffix(to, "/") && info.Type != api.FileInfoTypeDir {
		return &hinted{fmt.Errorf("%s: no such directory", to), "make it first"}
	}
	switch info.Type {
	case api.FileInfoTypeDir:
		made := os.Mkdir(to, permissions(*info)|0o700)
		if made != nil && !errors.Is(made, fs.ErrExist) {
			return made
		}
		root, err := os.OpenRoot(to)
		if err != nil {
			return err
		}
		defer root.Close()
		err = x.tree(ctx, from, root, ".")
		if made == nil {
			err = errors.Join(err, withhold(root, ".", permissions(*info)))
		}
		return err
	case api.FileInfoTypeFile, api.FileInfoTypeSymlink:
		return x.file(ctx, from, *info, to)
	}
	x.left = append(x.left, from)
	return nil
}

// file copies a file of the sandbox, or what a symbolic link leads to, to a path here, which
// has the whole of it or stays as it is. A device or a pipe is written to.
func (x *copying) file(ctx context.Context, from string, info client.FileInfo, to string) error {
	if s, err := os.Stat(to); err == nil && !s.Mode().IsRegular() {
		file, err := os.OpenFile(to, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(x.read(ctx, from, info.Size, file), file.Close())
	}
	mode := permissions(info)
	if info.Type == api.FileInfoTypeSymlink {
		mode, info.Size = 0o644, 0
	}
	part, err := newPart(to)
	if err != nil {
		return err
	}
	if err := x.read(ctx, from, info.Size, part); err != nil {
		part.discard()
		return err
	}
	return part.commit(mode)
}

// tree copies what is in a directory of the sandbox into one below root. The guest says what
// there is, and is not believed: nothing is written outside of root.
func (x *copying) tree(ctx context.Context, from string, root *os.Root, to string) error {
	entries, err := x.c.ListFiles(ctx, x.box, from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := raw(e.Name, e.NameB64)
		if !filepath.IsLocal(name) || name == "." || strings.ContainsAny(name, "/"+string(filepath.Separator)) {
			return fmt.Errorf("%s has an entry with the impossible name %q", from, name)
		}
		if err := x.entry(ctx, path.Join(from, name), e, root, filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return nil
}

// entry copies one entry of a directory.
func (x *copying) entry(ctx context.Context, from string, e client.FileInfo, root *os.Root, to string) error {
	switch e.Type {
	case api.FileInfoTypeDir:
		made := root.Mkdir(to, permissions(e)|0o700)
		if made != nil && !errors.Is(made, fs.ErrExist) {
			return made
		}
		err := x.tree(ctx, from, root, to)
		if made == nil {
			err = errors.Join(err, withhold(root, to, permissions(e)))
		}
		return err
	case api.FileInfoTypeSymlink:
		if err := root.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		x.files++
		return root.Symlink(raw(e.Target, e.TargetB64), to)
	case api.FileInfoTypeFile:
		if err := root.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		file, err := root.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, permissions(e))
		if err != nil {
			return err
		}
		return errors.Join(x.read(ctx, from, e.Size, file), file.Close())
	}
	x.left = append(x.left, from)
	return nil
}

// withhold takes from the owner of a directory what they needed to fill it and are not to have.
func withhold(root *os.Root, dir string, mode fs.FileMode) error {
	if mode&0o700 == 0o700 {
		return nil
	}
	s, err := root.Stat(dir)
	if err != nil {
		return err
	}
	return root.Chmod(dir, s.Mode().Perm()&mode)
}

// read copies the contents of a file of the sandbox.
func (x *copying) read(ctx context.Context, from string, size int64, to io.Writer) error {
	body, err := x.c.ReadFile(ctx, x.box, from)
	if err != nil {
		return x.brokeOff(ctx, err, from, 0)
	}
	defer body.Close()
	n, err := io.Copy(to, x.reader(body, from, size))
	x.bytes += n
	return x.brokeOff(ctx, err, from, n)
}

// brokeOff explains why a file came to an end after n bytes if the error is no more than that it
// did: whoever asks for a sign of life is told what has become of the sandbox.
func (x *copying) brokeOff(ctx context.Context, err error, from string, n int64) error {
	if lost := new(client.LostError); !errors.As(err, &lost) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	if _, why := x.c.Ping(ctx, x.box); why != nil {
		return why
	}
	return fmt.Errorf("%s:%s broke off after %d bytes", x.box, from, n)
}

// permissions returns the permission bits of a file in a sandbox.
func permissions(info client.FileInfo) fs.FileMode {
	bits, err := strconv.ParseUint(info.Mode, 8, 32)
	if err != nil {
		return 0o644
	}
	return fs.FileMode(bits) & fs.ModePerm
}

// raw returns what a name is in bytes, which may not be UTF-8.
func raw(text string, bytes []byte) string {
	if bytes != nil {
		return string(bytes)
	}
	return text
}
