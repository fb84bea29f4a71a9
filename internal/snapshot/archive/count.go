package archive

import (
	"context"
	"io"
)

// Counter keeps the progress of shipping the parts of a snapshot.
type Counter struct {
	progress    Progress
	done, total int64
}

// NewCounter starts at nothing done. progress may be nil.
func NewCounter(progress Progress, parts []Part) *Counter {
	if progress == nil {
		progress = func(int64, int64) {}
	}
	c := &Counter{progress: progress, total: TotalSize(parts)}
	c.Add(0)
	return c
}

// Add notes n more bytes as done; n is negative when they are done again.
func (c *Counter) Add(n int64) {
	c.done += n
	c.progress(c.done, c.total)
}

// Reader returns r, counting what is read from it, and failing once ctx ends.
func (c *Counter) Reader(ctx context.Context, r io.Reader) io.Reader {
	return &countingReader{ctx, r, c}
}

type countingReader struct {
	ctx   context.Context
	r     io.Reader
	count *Counter
}

func (r *countingReader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.r.Read(b)
	r.count.Add(int64(n))
	return n, err
}
