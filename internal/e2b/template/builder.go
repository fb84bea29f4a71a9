package template

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

const (
	atOnce    = 2                // builds that run at a time; others wait their turn
	maxKnown  = 500              // builds that are remembered
	keepTime  = 24 * time.Hour   // that a build which has ended is remembered
	buildTime = time.Hour        // that a build may take
	killTime  = 10 * time.Second // to end its sandbox
)

// Manager is the domain as a build uses it; *sandbox.Manager is one.
type Manager interface {
	Fork(ctx context.Context, spec sandbox.ForkSpec) ([]sandbox.ForkResult, error)
	Kill(id string) error
	Exec(ctx context.Context, id string, cmd sandbox.Command) (*sandbox.CommandResult, error)
	StartProcess(ctx context.Context, id string, spec sandbox.ProcessSpec) (sandbox.Attachment, error)
	AttachProcess(ctx context.Context, id string, ref sandbox.ProcessRef) (sandbox.Attachment, error)
	WriteFile(ctx context.Context, id, path string, r io.Reader, opts sandbox.WriteOptions) error
	User(ctx context.Context, id, name string) (*sandbox.User, error)
	Branch(ctx context.Context, id string, spec sandbox.BranchSpec) (*sandbox.SnapshotInfo, error)
}

// Step is one instruction of a build.
type Step struct {
	Type string // RUN, COPY, ENV, WORKDIR or USER
	Args []string
	Hash string // of the uploaded files of a COPY
}

// Spec says what to build.
type Spec struct {
	From     string // reference to a template
	Steps    []Step
	StartCmd string // runs on in every sandbox; may be empty
	ReadyCmd string // succeeds once the start command is ready; may be empty
	Base     Size   // of what it starts from, and so of what is built
}

// Size is that of a sandbox's machine.
type Size struct{ VCPUs, MemoryMiB, DiskMiB int }

// wanted tells what of a size that was asked for cannot be had; zero asks for
// nothing.
func (s Size) wanted(want Size) (notes []string) {
	note := func(what string, want, have int) {
		notes = append(notes, fmt.Sprintf("%s: %d is not honoured: a template has what it is built from has, which is %d", what, want, have))
	}
	if want.VCPUs != 0 && want.VCPUs != s.VCPUs {
		note("cpuCount", want.VCPUs, s.VCPUs)
	}
	if want.MemoryMiB != 0 && want.MemoryMiB != s.MemoryMiB {
		note("memoryMB", want.MemoryMiB, s.MemoryMiB)
	}
	if want.DiskMiB > s.DiskMiB {
		note("minFreeDiskMb", want.DiskMiB, s.DiskMiB)
	}
	return notes
}

// Statuses of a build.
const (
	Waiting  = "waiting" // nobody has said what to build
	Building = "building"
	Ready    = "ready"
	Failed   = "error"
)

// Status tells of a build.
type Status struct {
	Template  string
	ID        string
	State     string
	Message   string // why it failed
	Step      string // that failed: "base", the number of a step from 1 on, or "finalize"
	CreatedAt time.Time
	UpdatedAt time.Time
}

// Entry is a line of a build's log.
type Entry struct {
	Time    time.Time
	Level   string // debug, info, warn or error
	Message string
	Step    string // as in Status; may be empty
}

// Builder runs builds. Its methods are safe for concurrent use and fail with
// *sandbox.Error.
type Builder struct {
	m     Manager
	store *Store
	files *files
	log   *slog.Logger
	ctx   context.Context
	end   context.CancelFunc
	turns chan struct{}
	wg    sync.WaitGroup

	mu     sync.Mutex
	builds map[string]*build // by id; guarded by mu
}

// build is one of them.
type build struct {
	id   string
	name string
	tags []string
	want Size // that the request asked for

	mu     sync.Mutex
	status Status // guarded by mu
	log    buildLog
}

// NewBuilder returns a Builder that keeps uploaded files in dir.
func NewBuilder(m Manager, store *Store, dir string, log *slog.Logger) (*Builder, error) {
	f, err := openFiles(dir)
	if err != nil {
		return nil, fmt.Errorf("opening uploaded files: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Builder{
		m: m, store: store, files: f, log: log, ctx: ctx, end: cancel,
		turns: make(chan struct{}, atOnce), builds: make(map[string]*build),
	}, nil
}

// Close cancels the builds and waits until they have left nothing.
func (b *Builder) Close() {
	b.end()
	b.wg.Wait()
}

// Request makes a build that waits for its spec.
func (b *Builder) Request(name string, tags []string, want Size) (Status, error) {
	if !namePattern.MatchString(name) {
		return Status{}, invalid("a name has 1 to 64 letters, digits, _ and -", "name: malformed name of a template %q", clip(name))
	}
	if b.store.IsAlias(name) {
		return Status{}, forbidden("name: %q is a configured name; choose another", name)
	}
	for _, tag := range tags {
		if !tagPattern.MatchString(tag) {
			return Status{}, invalid("a tag has 1 to 64 letters, digits, _, . and -", "tags: malformed tag %q", clip(tag))
		}
	}
	if len(tags) == 0 {
		tags = []string{DefaultTag}
	}
	var id [16]byte
	rand.Read(id[:])
	now := time.Now()
	made := &build{id: uuid(id, 4), name: name, tags: slices.Clone(tags), want: want}
	made.status = Status{Template: name, ID: made.id, State: Waiting, CreatedAt: now, UpdatedAt: now}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget(now)
	if len(b.builds) >= maxKnown {
		return Status{}, full("%d builds are remembered", maxKnown)
	}
	b.builds[made.id] = made
	return made.status, nil
}

// forget drops builds that nobody will ask for any more. The caller holds mu.
func (b *Builder) forget(now time.Time) {
	for id, old := range b.builds {
		old.mu.Lock()
		if old.status.State != Building && now.Sub(old.status.UpdatedAt) > keepTime {
			delete(b.builds, id)
		}
		old.mu.Unlock()
	}
}

func (b *Builder) build(template, id string) (*build, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	made := b.builds[id]
	if made == nil || made.name != template {
		return nil, notFound("template %q has no build %q", clip(template), clip(id))
	}
	return made, nil
}

// Start says what to build, and starts it.
func (b *Builder) Start(template, id string, spec Spec) error {
	made, err := b.build(template, id)
	if err != nil {
		return err
	}
	from, err := b.store.Resolve(spec.From)
	if err != nil {
		return err
	}
	for i, step := range spec.Steps {
		if err := b.checkStep(step); err != nil {
			return invalid("", "steps[%d]: %v", i, err)
		}
	}
	if err := b.ctx.Err(); err != nil {
		return &sandbox.Error{Code: sandbox.Unavailable, Message: "forkd is shutting down"}
	}
	made.mu.Lock()
	defer made.mu.Unlock()
	if made.status.State != Waiting {
		return &sandbox.Error{Code: sandbox.FailedPrecondition, Message: "the build has been started already"}
	}
	made.status.State, made.status.UpdatedAt = Building, time.Now()
	b.wg.Go(func() { b.run(made, from, spec) })
	return nil
}

// run does a build from its turn to its end.
func (b *Builder) run(made *build, from Resolved, spec Spec) {
	ctx, cancel := context.WithTimeout(b.ctx, buildTime)
	defer cancel()
	for _, text := range spec.Base.wanted(made.want) {
		made.log.add(Entry{Time: time.Now(), Level: "warn", Message: text})
	}
	j := &job{b: b, build: made, from: from, spec: spec}
	err := j.turn(ctx)
	if err != nil && ctx.Err() != nil && b.ctx.Err() == nil {
		err = fmt.Errorf("it took longer than %s: %w", buildTime, err)
	}
	if err != nil {
		made.log.add(Entry{Time: time.Now(), Level: "error", Message: err.Error(), Step: j.step})
		b.log.Info("a template was not built", "template", made.name, "build", made.id, "step", j.step, "error", err)
	}
	made.mu.Lock()
	defer made.mu.Unlock()
	made.status.State, made.status.UpdatedAt = Ready, time.Now()
	if err != nil {
		made.status.State, made.status.Message, made.status.Step = Failed, err.Error(), j.step
	}
}

// Status tells of a build. One that an earlier daemon has finished is ready.
func (b *Builder) Status(template, id string) (Status, error) {
	made, err := b.build(template, id)
	if err == nil {
		made.mu.Lock()
		defer made.mu.Unlock()
		return made.status, nil
	}
	t, _ := b.store.Template(template)
	for _, old := range t.Builds {
		if old.ID == id {
			return Status{Template: template, ID: id, State: Ready, CreatedAt: old.CreatedAt, UpdatedAt: old.CreatedAt}, nil
		}
	}
	return Status{}, err
}

// Builds lists what is remembered of the builds of a template, oldest first.
func (b *Builder) Builds(template string) (list []Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, made := range b.builds {
		if made.name == template {
			made.mu.Lock()
			list = append(list, made.status)
			made.mu.Unlock()
		}
	}
	slices.SortFunc(list, func(a, b Status) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return list
}

// Log returns the log of a build, empty if it is not remembered.
func (b *Builder) Log(template, id string) []Entry {
	made, err := b.build(template, id)
	if err != nil {
		return nil
	}
	return made.log.all()
}

// HasFile reports whether the files with a hash were uploaded.
func (b *Builder) HasFile(hash string) bool { return b.files.has(hash) }

// PutFile keeps the uploaded archive of the files with a hash.
func (b *Builder) PutFile(hash string, r io.Reader) error { return b.files.put(hash, r) }
