// Package servertest has a stand-in for the domain, for tests of what speaks
// REST. Its sandboxes are directories and processes of this machine: commands
// run, files are files, so streams, signals and errors behave as in earnest.
// Only the evaluator is a table.
//
// Import it from tests only. Fake.mu is a leaf lock.
package servertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

// Fake is a Manager without machines. Set the exported fields before use.
type Fake struct {
	Dir string // where sandboxes keep their files

	// ForkError, if set, is asked for each child.
	ForkError func(i int) *sandbox.Error
	// ForkDelay is how long a fork takes unless it is cancelled.
	ForkDelay time.Duration
	// Evals adds to the answers of the evaluator.
	Evals map[string]sandbox.EvalResult
	// CreateSteps is what the making of a snapshot reports; each step takes
	// StepDelay.
	CreateSteps []sandbox.Progress
	StepDelay   time.Duration

	mu        sync.Mutex
	next      int
	snapshots map[string]*sandbox.SnapshotInfo
	boxes     []*box
	running   int // commands and evaluations; guarded by mu
}

type box struct {
	info sandbox.Info
	root string
	intr chan struct{}
}

// New returns a Fake with the given snapshots.
func New(dir string, tags ...string) *Fake {
	f := &Fake{Dir: dir, snapshots: make(map[string]*sandbox.SnapshotInfo)}
	for _, tag := range tags {
		f.snapshots[tag] = snapshot(dir, tag)
	}
	return f
}

func snapshot(dir, tag string) *sandbox.SnapshotInfo {
	return &sandbox.SnapshotInfo{
		Tag: tag, Dir: filepath.Join(dir, "snapshots", tag), CreatedAt: time.Unix(1_700_000_000, 0),
		Status: "ready", Bootable: true, Engine: "fake", VCPUs: 1, MemoryMiB: 512, Modules: []string{"numpy"},
		MemoryLogicalBytes: 512 << 20, MemoryPhysicalBytes: 100 << 20, DiskPhysicalBytes: 4 << 20,
		VMStateBytes: 4096, ContentHash: "sha256:00",
	}
}

func fault(code sandbox.Code, hint, format string, args ...any) *sandbox.Error {
	return &sandbox.Error{Code: code, Hint: hint, Message: fmt.Sprintf(format, args...)}
}

// Running tells how many commands and evaluations are at work.
func (f *Fake) Running() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.running
}

func (f *Fake) enter() (leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.running--
	}
}

// Close ends all sandboxes.
func (f *Fake) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.boxes = nil
	return nil
}

// CreateSnapshot reports the steps and keeps the name.
func (f *Fake) CreateSnapshot(ctx context.Context, spec sandbox.SnapshotSpec, progress func(sandbox.Progress)) (*sandbox.SnapshotInfo, error) {
	f.mu.Lock()
	_, taken := f.snapshots[spec.Tag]
	f.mu.Unlock()
	if taken {
		return nil, fault(sandbox.AlreadyExists, "choose another tag or remove it with `forkd rmi`", "snapshot %q exists", spec.Tag)
	}
	for _, step := range f.CreateSteps {
		progress(step)
		select {
		case <-time.After(f.StepDelay):
		case <-ctx.Done():
			return nil, &sandbox.Error{Code: sandbox.Unavailable, Message: "making the snapshot", Err: ctx.Err()}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	info := snapshot(f.Dir, spec.Tag)
	f.snapshots[spec.Tag] = info
	return info, nil
}

// Snapshots lists by tag.
func (f *Fake) Snapshots() ([]sandbox.SnapshotInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := []sandbox.SnapshotInfo{}
	for _, info := range f.snapshots {
		all = append(all, *info)
	}
	slices.SortFunc(all, func(a, b sandbox.SnapshotInfo) int { return strings.Compare(a.Tag, b.Tag) })
	return all, nil
}

// Snapshot describes one snapshot.
func (f *Fake) Snapshot(tag string) (*sandbox.SnapshotInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, ok := f.snapshots[tag]
	if !ok {
		return nil, fault(sandbox.NotFound, "`forkd images` lists the snapshots", "there is no snapshot %q", tag)
	}
	out := *info
	for _, b := range f.boxes {
		if b.info.SnapshotTag == tag {
			out.Dependents = append(out.Dependents, b.info.ID)
		}
	}
	return &out, nil
}

// RemoveSnapshot removes one that no sandbox runs from.
func (f *Fake) RemoveSnapshot(tag string, force bool) error {
	info, err := f.Snapshot(tag)
	if err != nil {
		return err
	}
	if len(info.Dependents) > 0 && !force {
		return fault(sandbox.InUse, "end them first, or force", "snapshot %q is in use by %s", tag, strings.Join(info.Dependents, ", "))
	}
	for _, id := range info.Dependents {
		f.Kill(id)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.snapshots, tag)
	return nil
}

// Fork makes directories.
func (f *Fake) Fork(ctx context.Context, spec sandbox.ForkSpec) ([]sandbox.ForkResult, error) {
	if _, err := f.Snapshot(spec.Tag); err != nil {
		return nil, err
	}
	if f.ForkDelay > 0 {
		select {
		case <-time.After(f.ForkDelay):
		case <-ctx.Done():
			return nil, &sandbox.Error{Code: sandbox.Unavailable, Message: "forking", Err: ctx.Err()}
		}
	}
	results := make([]sandbox.ForkResult, spec.N)
	for i := range results {
		if f.ForkError != nil {
			if err := f.ForkError(i); err != nil {
				results[i].Err = err
				continue
			}
		}
		results[i].Sandbox = f.spawn(spec)
	}
	return results, nil
}

func (f *Fake) spawn(spec sandbox.ForkSpec) *sandbox.Info {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	b := &box{intr: make(chan struct{}, 1), info: sandbox.Info{
		ID: fmt.Sprintf("sb-%04d", f.next), SnapshotTag: spec.Tag, Engine: "fake", State: sandbox.Running,
		CreatedAt: time.Now(), MemoryLimitMiB: spec.MemoryLimitMiB, PrivateKiB: 64,
	}}
	if spec.Lifetime > 0 {
		b.info.ExpiresAt = b.info.CreatedAt.Add(spec.Lifetime)
	}
	b.root = filepath.Join(f.Dir, b.info.ID)
	f.boxes = append(f.boxes, b)
	info := b.info
	return &info
}

func (f *Fake) box(id string) (*box, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.boxes {
		if b.info.ID == id {
			return b, os.MkdirAll(b.root, 0o700)
		}
	}
	return nil, fault(sandbox.NotFound, "`forkd ls` lists the sandboxes", "there is no sandbox %q", id)
}

// Sandboxes lists by age.
func (f *Fake) Sandboxes() []sandbox.Info {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := []sandbox.Info{}
	for _, b := range f.boxes {
		all = append(all, b.info)
	}
	return all
}

// Sandbox describes one sandbox.
func (f *Fake) Sandbox(id string) (*sandbox.Info, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.boxes {
		if b.info.ID == id {
			info := b.info
			return &info, nil
		}
	}
	return nil, fault(sandbox.NotFound, "", "there is no sandbox %q", id)
}

// Kill forgets a sandbox.
func (f *Fake) Kill(id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := len(f.boxes)
	f.boxes = slices.DeleteFunc(f.boxes, func(b *box) bool { return b.info.ID == id })
	if len(f.boxes) == before {
		return fault(sandbox.NotFound, "", "there is no sandbox %q", id)
	}
	return nil
}

// Exec runs the command on this machine, in the sandbox's directory.
func (f *Fake) Exec(ctx context.Context, id string, cmd sandbox.Command) (*sandbox.CommandResult, error) {
	b, err := f.box(id)
	if err != nil {
		return nil, err
	}
	defer f.enter()()
	run, cancel := ctx, context.CancelFunc(func() {})
	if cmd.Timeout > 0 {
		run, cancel = context.WithTimeout(ctx, cmd.Timeout)
	}
	defer cancel()
	c := exec.CommandContext(run, cmd.Args[0], cmd.Args[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 100 * time.Millisecond
	c.Dir = filepath.Join(b.root, cmd.Cwd)
	c.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "USER=" + cmd.User}
	for name, value := range cmd.Env {
		c.Env = append(c.Env, name+"="+value)
	}
	stdout, stderr := &limited{cmd.Stdout, cmd.OutputLimit, false}, &limited{cmd.Stderr, cmd.OutputLimit, false}
	c.Stdout, c.Stderr = stdout, stderr
	if cmd.Stdin != nil {
		// Not c.Stdin: a reader that blocks must not keep the command from
		// having ended.
		in, err := c.StdinPipe()
		if err != nil {
			return nil, err
		}
		go func() {
			io.Copy(in, cmd.Stdin)
			in.Close()
		}()
	}
	start := time.Now()
	err = c.Run()
	if ctx.Err() != nil {
		return nil, &sandbox.Error{Code: sandbox.Unavailable, Message: "running the command", Err: ctx.Err()}
	}
	res := &sandbox.CommandResult{Duration: time.Since(start), TimedOut: run.Err() != nil}
	res.StdoutTruncated, res.StderrTruncated = stdout.cut, stderr.cut
	if c.ProcessState == nil {
		res.ExitCode = 127
		fmt.Fprintf(stderr, "%s: not found\n", cmd.Args[0])
		return res, nil
	}
	res.ExitCode = c.ProcessState.ExitCode()
	if ws := c.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		res.Signal = ws.Signal().String()
		res.ExitCode = 128 + int(ws.Signal())
	}
	return res, nil
}

type limited struct {
	w    io.Writer
	left int64
	cut  bool
}

func (l *limited) Write(b []byte) (int, error) {
	keep := min(int64(len(b)), l.left)
	if keep > 0 {
		if _, err := l.w.Write(b[:keep]); err != nil {
			return 0, err
		}
		l.left -= keep
	}
	l.cut = l.cut || keep < int64(len(b))
	return len(b), nil
}

// Eval looks the code up. "sleep" lasts until it is interrupted or cancelled.
func (f *Fake) Eval(ctx context.Context, id, code string, timeout time.Duration) (*sandbox.EvalResult, error) {
	b, err := f.box(id)
	if err != nil {
		return nil, err
	}
	defer f.enter()()
	if code == "sleep" {
		var limit <-chan time.Time
		if timeout > 0 {
			limit = time.After(timeout)
		}
		select {
		case <-b.intr:
			return raised("KeyboardInterrupt", ""), nil
		case <-limit:
			return nil, fault(sandbox.Timeout, "", "the evaluation took longer than %s", timeout)
		case <-ctx.Done():
			return nil, &sandbox.Error{Code: sandbox.Unavailable, Message: "evaluating", Err: ctx.Err()}
		}
	}
	if res, ok := f.Evals[code]; ok {
		return &res, nil
	}
	switch strings.TrimSpace(code) {
	case "numpy.zeros(5).tolist()":
		return value("[0.0, 0.0, 0.0, 0.0, 0.0]"), nil
	case "1+1":
		return value("2"), nil
	case "None":
		return &sandbox.EvalResult{Value: json.RawMessage("null"), Repr: "None"}, nil
	case "float('nan')":
		return &sandbox.EvalResult{Repr: "nan"}, nil
	case "x = 1":
		return &sandbox.EvalResult{}, nil
	case "print('hello')":
		return &sandbox.EvalResult{Stdout: []byte("hello\n")}, nil
	case "1/0":
		return raised("ZeroDivisionError", "division by zero"), nil
	case "bytes":
		return &sandbox.EvalResult{Stdout: []byte("\xff\x00ok")}, nil
	}
	return raised("NameError", "name '"+code+"' is not defined"), nil
}

func value(repr string) *sandbox.EvalResult {
	return &sandbox.EvalResult{Value: json.RawMessage(repr), Repr: repr}
}

func raised(kind, message string) *sandbox.EvalResult {
	return &sandbox.EvalResult{Error: &sandbox.EvalError{
		Type: kind, Message: message,
		Traceback: "Traceback (most recent call last):\n" + kind + ": " + message + "\n",
	}}
}

// Ping answers.
func (f *Fake) Ping(_ context.Context, id string) (*sandbox.PingResult, error) {
	if _, err := f.box(id); err != nil {
		return nil, err
	}
	return &sandbox.PingResult{RoundTrip: 150 * time.Microsecond, AgentVersion: "fake", Uptime: 3 * time.Second}, nil
}

// Interrupt ends an evaluation of "sleep".
func (f *Fake) Interrupt(_ context.Context, id string) error {
	b, err := f.box(id)
	if err != nil {
		return err
	}
	select {
	case b.intr <- struct{}{}:
	default:
	}
	return nil
}

func (f *Fake) path(id, path string) (string, error) {
	b, err := f.box(id)
	if err != nil {
		return "", err
	}
	return filepath.Join(b.root, filepath.Clean("/"+path)), nil
}

func fileError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return &sandbox.Error{Code: sandbox.NotFound, Message: "no such file", Err: err}
	case errors.Is(err, fs.ErrExist):
		return &sandbox.Error{Code: sandbox.AlreadyExists, Message: "the file exists", Err: err}
	}
	return &sandbox.Error{Code: sandbox.InvalidArgument, Message: "file operation", Err: err}
}

// ReadFile copies a file. One named "broken" fails after its first bytes.
func (f *Fake) ReadFile(_ context.Context, id, path string, offset, length int64, w io.Writer) error {
	name, err := f.path(id, path)
	if err != nil {
		return err
	}
	file, err := os.Open(name)
	if err != nil {
		return fileError(err)
	}
	defer file.Close()
	if length < 0 {
		length = 1 << 60
	}
	if _, err := io.Copy(w, io.NewSectionReader(file, offset, length)); err != nil {
		return fileError(err)
	}
	if filepath.Base(path) == "broken" {
		return fault(sandbox.SandboxDead, "", "the guest died")
	}
	return nil
}

// WriteFile writes beside and renames.
func (f *Fake) WriteFile(_ context.Context, id, path string, r io.Reader, opts sandbox.WriteOptions) error {
	name, err := f.path(id, path)
	if err != nil {
		return err
	}
	if opts.Parents {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return fileError(err)
		}
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), "new")
	if err != nil {
		return fileError(err)
	}
	defer os.Remove(tmp.Name())
	_, err = io.Copy(tmp, r)
	err = errors.Join(err, tmp.Chmod(opts.Mode), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), name)
	}
	return fileError(err)
}

// ListFiles lists by name.
func (f *Fake) ListFiles(ctx context.Context, id, path string) ([]sandbox.FileInfo, error) {
	name, err := f.path(id, path)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, fileError(err)
	}
	var infos []sandbox.FileInfo
	for _, entry := range entries {
		info, err := f.StatFile(ctx, id, filepath.Join(path, entry.Name()))
		if err != nil {
			return nil, err
		}
		infos = append(infos, *info)
	}
	return infos, nil
}

// StatFile describes a file.
func (f *Fake) StatFile(_ context.Context, id, path string) (*sandbox.FileInfo, error) {
	name, err := f.path(id, path)
	if err != nil {
		return nil, err
	}
	info, err := os.Lstat(name)
	if err != nil {
		return nil, fileError(err)
	}
	out := &sandbox.FileInfo{
		Name: info.Name(), Path: filepath.Clean(path), Size: info.Size(), Mode: info.Mode(), ModTime: info.ModTime(),
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		out.Target, err = os.Readlink(name)
	}
	return out, fileError(err)
}

// MakeDir makes a directory.
func (f *Fake) MakeDir(_ context.Context, id, path string, parents bool) error {
	name, err := f.path(id, path)
	if err != nil {
		return err
	}
	if parents {
		return fileError(os.MkdirAll(name, 0o755))
	}
	return fileError(os.Mkdir(name, 0o755))
}

// RenameFile moves.
func (f *Fake) RenameFile(_ context.Context, id, from, to string) error {
	src, err := f.path(id, from)
	if err != nil {
		return err
	}
	dst, err := f.path(id, to)
	if err != nil {
		return err
	}
	return fileError(os.Rename(src, dst))
}

// RemoveFile removes.
func (f *Fake) RemoveFile(_ context.Context, id, path string, recursive bool) error {
	name, err := f.path(id, path)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(name); err != nil || !recursive {
		return fileError(errors.Join(err, os.Remove(name)))
	}
	return fileError(os.RemoveAll(name))
}
