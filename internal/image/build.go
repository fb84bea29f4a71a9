package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/forkd-dev/forkd/internal/image/debian"
	"github.com/forkd-dev/forkd/internal/image/kernel"
	"github.com/forkd-dev/forkd/internal/processors"
)

// Progress tells how far a build is.
type Progress = debian.Progress

// Options say what to build.
type Options struct {
	Home     string   // where images and downloads are kept
	Mirror   string   // base URL of a Debian mirror; when empty, see debian.FindMirror
	Packages []string // Debian packages to add to the default set
	Arch     string   // of the guest, as Debian names it; default riscv64
	Agent    []byte   // the guest agent, an ELF program for that
	// Refresh asks the mirror for newer packages even when there is an image for
	// the same options.
	Refresh bool
	// Progress, when not nil, is told how the build goes, never from two
	// goroutines at once.
	Progress func(Progress)
}

// suite is the release that images are made from.
const suite = "trixie"

// architecture is what differs between guests of one and another.
type architecture struct {
	kernel  string // package that depends on the current kernel's
	modules []kernel.Want
}

var architectures = map[string]architecture{
	"riscv64": {"linux-image-riscv64", slices.Concat(guestModules, []kernel.Want{{Name: "rtc_goldfish"}})},
	"amd64":   {"linux-image-cloud-amd64", guestModules},
}

// basePackages are what an agent expects to find, beside what Debian calls
// essential. Those that can stand for a virtual package come first.
var basePackages = []string{
	"mawk", "libblas3", "liblapack3",
	"bash", "ca-certificates", "coreutils", "curl", "dash", "diffutils", "findutils", "git", "grep",
	"gzip", "hostname", "less", "libc-bin", "mount", "procps", "python3", "python3-numpy",
	"python3-pip", "sed", "sudo", "tar", "util-linux",
}

// guestModules are what the agent needs before it can mount the root and talk
// to the host. crc32c_generic is first because others want it by an alias.
var guestModules = []kernel.Want{
	{Name: "crc32c_generic", Optional: true},
	{Name: "virtio_mmio"}, {Name: "virtio_blk"}, {Name: "virtio_console"},
	{Name: "rng_core"}, {Name: "virtio_rng"},
	{Name: "vmw_vsock_virtio_transport"},
	{Name: "erofs"}, {Name: "ext4"}, {Name: "overlay"},
	{Name: "vmgenid"},
}

var packagePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]{1,127}$`)

const maxPackages = 1000 // in Options.Packages

// Build returns the image for the given options, making it when there is none.
// It uses the network only when it makes one. When ctx ends, Build stops soon
// and leaves nothing but whole downloads behind. At most one Build runs at a
// time under one home; others wait.
func Build(ctx context.Context, o Options) (*Image, error) {
	defer processors.All()()
	o.Arch = cmp.Or(o.Arch, "riscv64")
	arch, ok := architectures[o.Arch]
	if !ok {
		return nil, fmt.Errorf("there are no images for %q", o.Arch)
	}
	keys, err := debian.ArchiveKeys()
	if err != nil {
		return nil, err
	}
	b := &builder{
		Options: o,
		client:  debian.Client{Dir: cacheDir(o.Home), Keys: keys},
		mirror: func() (string, error) {
			return debian.FindMirror(o.Mirror, os.Getenv, os.DirFS("/etc/apt"))
		},
		base:    basePackages,
		kernel:  arch.kernel,
		modules: arch.modules,
		now:     time.Now,
	}
	return b.build(ctx)
}

// builder makes one image. Tests set what Build takes from the outside world.
type builder struct {
	Options
	client  debian.Client
	mirror  func() (string, error)
	base    []string
	kernel  string
	modules []kernel.Want
	now     func() time.Time

	reportMu sync.Mutex // held while Progress runs
}

func (b *builder) report(p Progress) {
	if b.Progress == nil {
		return
	}
	b.reportMu.Lock()
	defer b.reportMu.Unlock()
	b.Progress(p)
}

func (b *builder) notice(format string, args ...any) {
	b.report(Progress{Step: "notice", Detail: fmt.Sprintf(format, args...), Notice: true})
}

func (b *builder) build(ctx context.Context) (*Image, error) {
	img, err := b.locked(ctx)
	switch {
	case err == nil:
		return img, nil
	case ctx.Err() != nil:
		// Whatever failed did so because of that.
		return nil, fmt.Errorf("building an image: %w", ctx.Err())
	case errors.Is(err, syscall.ENOSPC):
		err = &noSpaceError{fmt.Errorf("building an image in %s: %w", b.Home, err)}
	}
	return nil, err
}

func (b *builder) locked(ctx context.Context) (*Image, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	if img := b.existing(); img != nil {
		return img, nil
	}
	unlock, err := lock(ctx, b.Home, func() { b.notice("another image is being built in %s; waiting for it", b.Home) })
	if err != nil {
		return nil, err
	}
	defer unlock()
	// Whoever held the lock may have made what is wanted.
	if img := b.existing(); img != nil {
		return img, nil
	}
	b.client.Report = b.report
	if err := errors.Join(sweep(b.Home), b.client.Sweep()); err != nil {
		return nil, err
	}
	plan, err := b.plan(ctx)
	if err != nil {
		return nil, err
	}
	if img, err := b.reusable(plan.key); img != nil || err != nil {
		return img, err
	}
	return b.make(ctx, plan)
}

func (b *builder) check() error {
	if b.Home == "" {
		return errors.New("building an image: no home directory is given")
	}
	if len(b.Agent) == 0 {
		return errors.New("building an image: no guest agent is given")
	}
	if len(b.Packages) > maxPackages {
		return fmt.Errorf("building an image: %w: %d packages, at most %d are possible", debian.ErrUnresolved, len(b.Packages), maxPackages)
	}
	for _, name := range b.Packages {
		if !packagePattern.MatchString(name) {
			return fmt.Errorf("building an image: %w: %.80q is not a package name", debian.ErrUnresolved, name)
		}
	}
	return nil
}

// existing returns an image that was built for the same options, or nil.
func (b *builder) existing() *Image {
	if b.Refresh {
		return nil
	}
	images, _ := List(b.Home) // broken ones are dealt with when their key comes up
	want := b.request()
	for _, img := range images {
		if img.Request == want {
			return img
		}
	}
	return nil
}

// reusable returns the image with that key, or nil when there is none that can
// be opened. A broken one is removed. The lock must be held.
func (b *builder) reusable(key string) (*Image, error) {
	img, err := Open(b.Home, key)
	if err == nil || errors.Is(err, ErrNotExist) {
		return img, nil
	}
	b.notice("%v; building it again", err)
	return nil, discard(filepath.Join(imagesDir(b.Home), key))
}

// plan is what a build is going to use.
type plan struct {
	index     *debian.Index
	packages  []*debian.Package // of the root file system, dependencies first
	kernel    *debian.Package
	base, key string
}

// plan asks the mirror what there is and decides what to use.
func (b *builder) plan(ctx context.Context) (*plan, error) {
	mirror, err := b.mirror()
	if err != nil {
		return nil, err
	}
	b.client.Mirror = mirror
	p := &plan{}
	if p.index, err = b.client.Index(ctx, suite, b.Arch); err != nil {
		return nil, err
	}
	names := slices.Concat(b.base, b.extra(), p.index.Essential())
	if p.packages, err = p.index.Resolve(names); err != nil {
		return nil, err
	}
	if p.kernel, err = p.index.Kernel(b.kernel); err != nil {
		return nil, err
	}
	p.base = baseKey(b.Arch, p, b.modules)
	p.key = imageKey(p.base, b.Agent)
	return p, nil
}

type noSpaceError struct{ error }

func (e *noSpaceError) Unwrap() error { return e.error }

// Hint says what a person can do about it.
func (e *noSpaceError) Hint() string {
	return "free about 1 GiB there, or set FORKD_HOME to a place with more space"
}
