package sandbox

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd-dev/forkd/internal/hub"
	"github.com/forkd-dev/forkd/internal/processors"
	"github.com/forkd-dev/forkd/internal/snapshot"
	"github.com/forkd-dev/forkd/internal/snapshot/archive"
)

// ShipOptions say which hub names of snapshots are of. What is left out is taken
// from FORKD_HUB_URL and FORKD_HUB_TOKEN.
type ShipOptions struct {
	HubURL   string
	HubToken string
}

// Steps of packing and shipping, besides those of package hub.
const (
	stepPack   = "pack"
	stepUnpack = "unpack"
)

// Pack writes a snapshot, with all that it stands on, to w as one file. It is
// verified before the first byte is written.
func (m *Manager) Pack(ctx context.Context, tag string, w io.Writer, progress func(Progress)) error {
	defer processors.All()()
	report := reporter(progress)
	x, err := m.export(ctx, tag, report)
	if err != nil {
		return err
	}
	defer x.Close()
	err = archive.Write(ctx, w, x.Manifest, archive.From(x), func(done, total int64) { report(stepPack, "packing "+tag, done, total) })
	if err != nil {
		return wrap(err, "packing snapshot %q", tag)
	}
	return nil
}

// Unpack makes a snapshot of what Pack has written. An empty tag means that of
// the pack. If anything is wrong nothing is kept.
func (m *Manager) Unpack(ctx context.Context, r io.Reader, tag string, progress func(Progress)) (*SnapshotInfo, error) {
	defer processors.All()()
	report := reporter(progress)
	in := &intake{m: m, ctx: ctx, tag: tag}
	return in.finish("unpacking a snapshot", archive.Read(ctx, &packReader{r}, in.begin, func(done, total int64) {
		report(stepUnpack, "unpacking "+in.tag, done, total)
	}))
}

// Push sends a snapshot to where a reference says: a URL, a name on the hub, or
// an OCI registry. What is there already is not sent again.
func (m *Manager) Push(ctx context.Context, tag, reference string, opts ShipOptions, progress func(Progress)) error {
	defer processors.All()()
	report := reporter(progress)
	c, ref, err := m.hub(reference, opts)
	if err != nil {
		return err
	}
	defer c.Close()
	x, err := m.export(ctx, tag, report)
	if err != nil {
		return err
	}
	defer x.Close()
	err = c.Push(ctx, ref, x.Manifest, archive.From(x), func(step hub.Step, done, total int64) {
		message := "sending " + tag
		if step == hub.Packing {
			message = "packing " + tag
		}
		report(string(step), message, done, total)
	})
	if err != nil {
		return shipError(err, "pushing snapshot %q", tag)
	}
	return nil
}

// Pull makes a snapshot of what a reference names. An empty tag means that which
// it was packed with. What is here already is not fetched again. If anything is
// wrong nothing is kept.
func (m *Manager) Pull(ctx context.Context, reference, tag string, opts ShipOptions, progress func(Progress)) (*SnapshotInfo, error) {
	defer processors.All()()
	report := reporter(progress)
	c, ref, err := m.hub(reference, opts)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	in := &intake{m: m, ctx: ctx, tag: tag}
	return in.finish("pulling a snapshot", c.Pull(ctx, ref, in.begin, func(step hub.Step, done, total int64) {
		report(string(step), "fetching "+in.tag, done, total)
	}))
}

// export opens the files of a snapshot after verifying them. One that is being
// written is waited for.
func (m *Manager) export(ctx context.Context, tag string, report func(step, message string, done, total int64)) (*snapshot.Export, error) {
	err := m.Verify(ctx, tag, func(p Progress) { report(p.Step, p.Message, p.Done, p.Total) })
	if err != nil {
		return nil, err
	}
	x, err := m.store.Export(tag)
	if err != nil {
		return nil, m.openError(tag, err)
	}
	return x, nil
}

// hub returns what reaches a reference.
func (m *Manager) hub(reference string, opts ShipOptions) (*hub.Client, hub.Reference, error) {
	ref, err := hub.Parse(reference)
	if err != nil {
		return nil, ref, shipError(err, "reading the reference")
	}
	if ref.Path != "" {
		// Whoever talks to a daemon does not get at its host's files by this.
		return nil, ref, fail(InvalidArgument, "pack it into the file, or unpack the file", "%.200q is a file, and the daemon does not open files for its clients", reference)
	}
	own := os.Getenv("FORKD_HUB_URL")
	token := opts.HubToken
	if token == "" && (opts.HubURL == "" || sameServer(opts.HubURL, own)) {
		token = os.Getenv("FORKD_HUB_TOKEN") // for our own hub, not for one that a client names
	}
	c, err := hub.New(hub.Options{
		HubURL: cmp.Or(opts.HubURL, own), HubToken: token, Temp: m.opts.Home, UserAgent: "forkd/" + m.opts.Version,
	})
	if err != nil {
		return nil, ref, shipError(err, "finding the hub")
	}
	return c, ref, nil
}

func sameServer(a, b string) bool {
	x, err := url.Parse(a)
	y, err2 := url.Parse(b)
	return err == nil && err2 == nil && x.Scheme == y.Scheme && x.Host == y.Host
}

// intake is a snapshot that comes from elsewhere.
type intake struct {
	m   *Manager
	ctx context.Context
	tag string // as the client wants it, then as it is

	building bool // the tag's lock is held
}

// begin decides by the manifest whether to take a snapshot in.
func (in *intake) begin(man *snapshot.Manifest) (archive.Import, error) {
	m := in.m
	man.Tag = cmp.Or(in.tag, man.Tag)
	in.tag = man.Tag
	man.BranchedFrom = "" // no sandbox of this host
	if !snapshot.ValidTag(in.tag) {
		return nil, badTag(in.tag)
	}
	if err := m.opts.Engine.offers(man); err != nil {
		return nil, err
	}
	if !m.building.try(in.tag) {
		return nil, taken(in.tag)
	}
	in.building = true
	imp, err := m.store.BeginImport(in.ctx, *man, false)
	if errors.Is(err, fs.ErrExist) {
		return nil, taken(in.tag)
	}
	if err != nil {
		return nil, wrap(err, "beginning snapshot %q", in.tag)
	}
	to := archive.Into(imp)
	if err := m.fits(man, to); err != nil {
		return nil, errors.Join(err, to.Abort())
	}
	return to, nil
}

// fits refuses what would not find room on the disk. Others may take that room
// meanwhile; then it is an error when it happens.
func (m *Manager) fits(man *snapshot.Manifest, to archive.Import) error {
	parts, err := archive.Parts(man)
	if err != nil {
		return wrap(err, "beginning snapshot %q", man.Tag)
	}
	need := archive.TotalSize(slices.DeleteFunc(parts, to.Has))
	var st unix.Statfs_t
	if err := unix.Statfs(m.opts.Home, &st); err != nil {
		return wrap(err, "looking for room in %s", m.opts.Home)
	}
	if free := int64(st.Bavail) * st.Bsize; need > free {
		return fail(NoSpace, "free some disk space, or set FORKD_HOME to another disk",
			"snapshot %q needs %d MiB, but %d MiB are free", man.Tag, need>>20, free>>20)
	}
	return nil
}

// finish ends an intake and describes what came of it.
func (in *intake) finish(what string, err error) (*SnapshotInfo, error) {
	if in.building {
		in.m.building.release(in.tag)
	}
	if err != nil {
		return nil, shipError(err, "%s", what)
	}
	in.m.forgetFailure(in.tag)
	return in.m.Snapshot(in.tag)
}

// offers refuses a snapshot of a machine that the engine does not offer.
func (eng Engine) offers(man *snapshot.Manifest) error {
	if have := string(eng.ISA); have != man.ISA {
		return fail(NotBootable, "use a host whose engine offers "+man.ISA,
			"snapshot %q is of a %s machine, the %s engine offers %s", man.Tag, man.ISA, eng.Name, have)
	}
	for _, feature := range man.CPUFeatures {
		if !slices.Contains(eng.Features, feature) {
			return fail(NotBootable, "use a forkd whose engine offers "+feature,
				"snapshot %q is of a CPU with %s, which the %s engine does not offer", man.Tag, feature, eng.Name)
		}
	}
	return nil
}

// shipError classifies what went wrong with a snapshot that travels.
func shipError(err error, format string, args ...any) error {
	e := wrap(err, format, args...)
	for _, c := range []struct {
		is   error
		code Code
		hint string
	}{
		{archive.ErrBadPack, NotBootable, "get it again, or have it made again with this version of forkd"},
		{hub.ErrReference, InvalidArgument, "write a URL, owner/name[:version], or oci://host/repository:tag"},
		{hub.ErrNotFound, NotFound, "check the reference, and that you may see what it names"},
		{hub.ErrExists, AlreadyExists, "give it another name or version"},
		{hub.ErrDenied, FailedPrecondition, "for the hub set FORKD_HUB_TOKEN; for a registry log in with your container tool"},
		{hub.ErrReadOnly, FailedPrecondition, "push to a server that stores what is PUT, or to an OCI registry: oci://host/repository:tag"},
		{hub.ErrUnavailable, Unavailable, "check that the server can be reached from the daemon's host, and try again"},
	} {
		if e.Code == Internal && errors.Is(err, c.is) {
			e.Code, e.Hint = c.code, c.hint
		}
	}
	return e
}

// packReader tells a pack that stopped coming from one that is bad.
type packReader struct{ r io.Reader }

func (p *packReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &Error{Code: Unavailable, Message: "the pack broke off", Hint: "send it again", Err: err}
	}
	return n, err
}

// reportEvery is how often progress is worth a message.
const reportEvery = 100 * time.Millisecond

// reporter returns what reports progress, from any goroutine, but not too often.
func reporter(progress func(Progress)) func(step, message string, done, total int64) {
	var mu sync.Mutex
	var last Progress
	var at time.Time
	return func(step, message string, done, total int64) {
		if progress == nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if step == last.Step && done < total && time.Since(at) < reportEvery {
			return
		}
		last, at = Progress{Step: step, Message: message, Done: done, Total: total}, time.Now()
		progress(last)
	}
}
