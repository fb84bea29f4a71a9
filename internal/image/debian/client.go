package debian

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"

	"github.com/forkd-dev/forkd/internal/image/compress"
)

const (
	maxInRelease = 8 << 20 // bytes; the real one has 140 KiB
	maxPackages  = 1 << 30 // bytes of an unpacked package list; the real one has 52 MiB
	downloads    = 6       // at once
)

// Client reads one Debian archive. Its fields must not be changed after first
// use.
type Client struct {
	Mirror string // base URL without trailing slash
	Dir    string // the cache; made when missing
	Keys   openpgp.EntityList
	HTTP   *http.Client // nil means one made by [NewHTTPClient]
	Now    func() time.Time
	// Report, when not nil, is called from several goroutines, also at the same
	// time.
	Report func(Progress)

	once     sync.Once
	mu       sync.Mutex        // guards verified
	verified map[string]string // path of the cache file by SHA-256, checked since start
}

func (c *Client) init() {
	c.once.Do(func() {
		c.verified = map[string]string{}
		if c.HTTP == nil {
			c.HTTP = NewHTTPClient()
		}
		if c.Now == nil {
			c.Now = time.Now
		}
	})
}

func (c *Client) report(p Progress) {
	if c.Report != nil {
		c.Report(p)
	}
}

func (c *Client) notice(format string, args ...any) {
	c.report(Progress{Step: "notice", Detail: fmt.Sprintf(format, args...), Notice: true})
}

// Index fetches and verifies the package list of a suite's main component. When
// the mirror cannot be reached, the index stored by an earlier call is used,
// which is reported as a notice and in Index.Offline.
func (c *Client) Index(ctx context.Context, suite, arch string) (*Index, error) {
	c.init()
	release, offline, err := c.release(ctx, suite)
	if err != nil {
		return nil, fmt.Errorf("index of %s at %s: %w", suite, c.Mirror, err)
	}
	dir := "main/binary-" + arch
	list, ok := release.files[dir+"/Packages.xz"]
	if !ok {
		return nil, fmt.Errorf("index of %s at %s: %w: there is no package list for %s", suite, c.Mirror, ErrNotFound, arch)
	}
	paths := []string{"dists/" + suite + "/" + dir + "/Packages.xz"}
	if release.byHash {
		// By its hash the list stays there while the mirror is being updated.
		paths = append([]string{"dists/" + suite + "/" + dir + "/by-hash/SHA256/" + list.sha256}, paths...)
	}
	name, err := c.object(ctx, list.sha256, list.size, "package list", paths...)
	if err != nil {
		return nil, err
	}
	text, err := readPackages(ctx, name, release.files[dir+"/Packages"].size)
	if err != nil {
		return nil, fmt.Errorf("reading the package list: %w", err)
	}
	x, err := parsePackages(text)
	if err != nil {
		return nil, err
	}
	x.Suite, x.Version, x.Date, x.Digest, x.Offline = suite, release.version, release.date, release.digest, offline
	return x, nil
}

// release returns the suite's verified InRelease, the stored one when the
// mirror is not reachable.
func (c *Client) release(ctx context.Context, suite string) (r *release, offline bool, err error) {
	// Two mirrors may be at different points in time, so each has its own file.
	sum := sha256.Sum256([]byte(c.Mirror))
	stored := filepath.Join(c.Dir, "InRelease-"+suite+"-"+hex.EncodeToString(sum[:6]))
	c.report(Progress{Step: "index", Detail: suite})
	var text strings.Builder
	err = retry(ctx, func() error {
		text.Reset()
		return c.download(ctx, "dists/"+suite+"/InRelease", &text, maxInRelease)
	})
	if errors.Is(err, ErrUnreachable) {
		old, readErr := os.ReadFile(stored)
		if readErr != nil {
			return nil, false, err
		}
		r, openErr := openRelease(old, c.Keys, c.Now())
		if openErr != nil {
			return nil, false, fmt.Errorf("%w; the stored index is of no use either: %w", err, openErr)
		}
		c.notice("%s cannot be reached; using the index of %s that was stored before", c.Mirror, r.date.Format(time.DateOnly))
		return r, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	r, err = openRelease([]byte(text.String()), c.Keys, c.Now())
	if err != nil {
		return nil, false, err
	}
	err = c.place(stored, func(w io.Writer) error {
		_, err := io.WriteString(w, text.String())
		return err
	})
	return r, false, err
}

// readPackages unpacks a package list. size is what the index says of the
// unpacked file, or 0; no more is ever read.
func readPackages(ctx context.Context, name string, size int64) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	unpacked, err := compress.Open(&ctxReader{ctx, f}, ".xz")
	if err != nil {
		return "", err
	}
	defer unpacked.Close()
	if size <= 0 || size > maxPackages {
		size = maxPackages
	} else if st, err := f.Stat(); err == nil && size > 1000*st.Size() {
		return "", fmt.Errorf("%w: %d bytes cannot unpack to %d", ErrFormat, st.Size(), size)
	}
	var text strings.Builder
	if size < maxPackages {
		text.Grow(int(size))
	}
	if _, err := io.Copy(&text, io.LimitReader(unpacked, size)); err != nil {
		return "", err
	}
	return text.String(), nil
}

// ctxReader ends a read loop when its context does.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (r *ctxReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// Fetch makes sure that every package is in the cache, whole and with the right
// hash. Packages there already are not fetched again.
func (c *Client) Fetch(ctx context.Context, packages []*Package) error {
	c.init()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var total int64
	for _, p := range packages {
		total += p.Size
	}
	var done atomic.Int64
	slots := make(chan struct{}, downloads)
	var wg sync.WaitGroup
	for _, p := range packages {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if ctx.Err() != nil {
				return
			}
			if _, err := c.object(ctx, p.SHA256, p.Size, p.String(), p.Filename); err != nil {
				cancel(err)
				return
			}
			c.report(Progress{Step: "download", Detail: p.String(), Done: done.Add(p.Size), Total: total})
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// Open returns the .deb of a package, fetching it when it is not in the cache.
func (c *Client) Open(ctx context.Context, p *Package) (*os.File, error) {
	c.init()
	name, err := c.object(ctx, p.SHA256, p.Size, p.String(), p.Filename)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", p, err)
	}
	return f, nil
}

// Sweep removes what downloads that were killed have left in the cache. No
// other process may be using the cache.
func (c *Client) Sweep() error {
	parts, err := filepath.Glob(filepath.Join(c.Dir, "*"+partSuffix))
	if err != nil {
		return fmt.Errorf("sweeping the cache: %w", err)
	}
	for _, part := range parts {
		if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("sweeping the cache: %w", err)
		}
	}
	return nil
}
