package template

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

// steps are the instructions that there are.
var steps = map[string]struct {
	check func(b *Builder, s Step) error
	do    func(ctx context.Context, j *job, s Step) error
}{
	"RUN":     {args(1, 2), runStep},
	"COPY":    {checkCopy, copyStep},
	"ENV":     {checkEnv, envStep},
	"WORKDIR": {args(1, 1), workdirStep},
	"USER":    {args(1, 1), userStep},
}

const (
	maxSteps    = 1000
	maxStepText = 256 << 10 // bytes of the arguments of one step
)

func (b *Builder) checkStep(s Step) error {
	kind, ok := steps[s.Type]
	if !ok {
		return fmt.Errorf("unknown type %q; known are %s", clip(s.Type), strings.Join(slices.Sorted(maps.Keys(steps)), ", "))
	}
	size := 0
	for _, a := range s.Args {
		size += len(a)
		if strings.IndexByte(a, 0) >= 0 {
			return errors.New("an argument holds a NUL byte")
		}
	}
	if size > maxStepText {
		return fmt.Errorf("the arguments have %d bytes, more than %d", size, maxStepText)
	}
	return kind.check(b, s)
}

func args(low, high int) func(*Builder, Step) error {
	return func(_ *Builder, s Step) error {
		if len(s.Args) < low || len(s.Args) > high || s.Args[0] == "" {
			return fmt.Errorf("%s needs %d to %d arguments, not %d", s.Type, low, high, len(s.Args))
		}
		return nil
	}
}

func checkEnv(_ *Builder, s Step) error {
	if len(s.Args) == 0 || len(s.Args)%2 != 0 {
		return errors.New("ENV needs names and values in turn")
	}
	for i := 0; i < len(s.Args); i += 2 {
		if s.Args[i] == "" || strings.Contains(s.Args[i], "=") {
			return fmt.Errorf("malformed name of a variable %q", clip(s.Args[i]))
		}
	}
	return nil
}

func checkCopy(b *Builder, s Step) error {
	if err := args(2, 4)(b, s); err != nil {
		return err
	}
	if !ValidHash(s.Hash) {
		return fmt.Errorf("filesHash: malformed hash %q", clip(s.Hash))
	}
	if !b.HasFile(s.Hash) {
		return fmt.Errorf("the files of COPY %s were not uploaded", clip(s.Args[0]))
	}
	if mode := arg(s, 3); mode != "" {
		if n, err := strconv.ParseUint(mode, 8, 32); err != nil || n > 0o7777 {
			return fmt.Errorf("malformed mode %q", clip(mode))
		}
	}
	return nil
}

// arg returns an argument that may be left out.
func arg(s Step, i int) string {
	if i < len(s.Args) {
		return s.Args[i]
	}
	return ""
}

func runStep(ctx context.Context, j *job, s Step) error {
	return j.shell(ctx, s.Args[0], arg(s, 1))
}

// shell runs a command line as a user would.
func (j *job) shell(ctx context.Context, line, user string) error {
	return j.exec(ctx, sandbox.Command{
		Args: []string{"/bin/bash", "-l", "-c", line}, User: cmp.Or(user, j.now.User), Env: j.now.Env, Cwd: j.now.Workdir,
	})
}

// exec runs a command that must succeed; its output goes to the log.
func (j *job) exec(ctx context.Context, cmd sandbox.Command) error {
	out := &lines{log: &j.build.log, level: "info", step: j.step}
	errs := &lines{log: &j.build.log, level: "warn", step: j.step}
	cmd.Stdout, cmd.Stderr, cmd.OutputLimit = out, errs, maxLog
	result, err := j.b.m.Exec(ctx, j.id, cmd)
	out.flush()
	errs.flush()
	if err != nil {
		return err
	}
	if result.ExitCode == 0 {
		return nil
	}
	said := strings.TrimSpace(string(errs.last))
	if said == "" {
		said = strings.TrimSpace(string(out.last))
	}
	if said != "" {
		said = ": " + said
	}
	return fmt.Errorf("exit status %d%s", result.ExitCode, said)
}

// place is a shell script. Its parameters are an archive, what to take out of it,
// where to put that, its owner, and its mode or nothing. It works as COPY does
// elsewhere: a directory means its contents; a file goes into a directory that
// exists or is written with a slash at the end, and is otherwise named as it is
// said.
const place = `set -eu
archive=$1 what=$2 dest=$3 owner=$4 mode=$5
case $owner in *:*) ;; *) owner=$owner: ;; esac
box=$(mktemp -d)
trap 'rm -rf "$box" "$archive"' EXIT
tar -xf "$archive" -C "$box" --no-same-owner
cd "$box"
IFS=
if [ -e "$what" ] || [ -L "$what" ]; then set -- "$what"; else set -- $what; fi
if [ ! -e "$1" ] && [ ! -L "$1" ]; then echo "there is no $what among the uploaded files" >&2; exit 1; fi
for s in "$@"; do
  chown -hR -- "$owner" "$s"
  if [ -n "$mode" ]; then chmod -R -- "$mode" "$s"; fi
done
into() { if [ ! -d "$1" ]; then mkdir -p -- "$1"; chown -- "$owner" "$1"; fi; }
for s in "$@"; do
  if [ -d "$s" ] && [ ! -L "$s" ]; then
    into "$dest"; cp -a -- "$s/." "$dest/"
  elif [ -d "$dest" ] || [ $# -gt 1 ] || [ "${dest%/}" != "$dest" ]; then
    into "$dest"; cp -a -- "$s" "$dest/"
  else
    into "$(dirname -- "$dest")"; cp -a -- "$s" "$dest"
  fi
done
`

func copyStep(ctx context.Context, j *job, s Step) error {
	user := cmp.Or(arg(s, 2), j.now.User)
	dest, err := j.absolute(ctx, s.Args[1])
	if err != nil {
		return err
	}
	f, err := j.b.files.open(s.Hash)
	if err != nil {
		return err
	}
	defer f.Close()
	archive := "/tmp/.template-" + s.Hash
	if err := j.b.m.WriteFile(ctx, j.id, archive, f, sandbox.WriteOptions{Mode: new(fs.FileMode(0o600))}); err != nil {
		return err
	}
	return j.exec(ctx, sandbox.Command{
		Args: []string{"/bin/sh", "-c", place, "copy", archive, strings.TrimPrefix(s.Args[0], "/"), dest, user, arg(s, 3)}, Cwd: "/",
	})
}

// absolute makes a path absolute. A slash at its end stays, as it means something.
func (j *job) absolute(ctx context.Context, name string) (string, error) {
	if path.IsAbs(name) {
		return name, nil
	}
	dir := j.now.Workdir
	if dir == "" {
		u, err := j.b.m.User(ctx, j.id, j.now.User)
		if err != nil {
			return "", err
		}
		dir = u.Home
	}
	joined := path.Join(dir, name)
	if strings.HasSuffix(name, "/") || name == "." {
		joined += "/"
	}
	return joined, nil
}

func envStep(_ context.Context, j *job, s Step) error {
	for i := 0; i < len(s.Args); i += 2 {
		j.now.Env[s.Args[i]] = s.Args[i+1]
	}
	if len(j.now.Env) > sandbox.MaxEnv {
		return fmt.Errorf("more than %d variables", sandbox.MaxEnv)
	}
	return nil
}

func workdirStep(ctx context.Context, j *job, s Step) error {
	dir, err := j.absolute(ctx, s.Args[0])
	if err != nil {
		return err
	}
	dir = path.Clean(dir)
	const make = `[ -d "$1" ] || { mkdir -p -- "$1" && chown -- "$2" "$1"; }`
	err = j.exec(ctx, sandbox.Command{Args: []string{"/bin/sh", "-c", make, "workdir", dir, j.now.User}, Cwd: "/"})
	if err == nil {
		j.now.Workdir = dir
	}
	return err
}

func userStep(ctx context.Context, j *job, s Step) error {
	if _, err := j.b.m.User(ctx, j.id, s.Args[0]); err != nil {
		return err
	}
	j.now.User = s.Args[0]
	return nil
}
