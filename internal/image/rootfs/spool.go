package rootfs

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"
)

// Spool keeps file contents in one temporary file until the image is written.
// Its methods may be called from several goroutines at once.
type Spool struct {
	file *os.File
	next atomic.Int64
}

// NewSpool makes a spool in dir. Its file has no name any more when NewSpool
// returns, so nothing is left behind however the process ends.
func NewSpool(dir string) (*Spool, error) {
	file, err := os.CreateTemp(dir, ".spool-*")
	if err != nil {
		return nil, fmt.Errorf("making a spool file: %w", err)
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, fmt.Errorf("unlinking the spool file: %w", err)
	}
	return &Spool{file: file}, nil
}

// Close frees the spool. Nodes made by it cannot be read afterwards.
func (s *Spool) Close() error { return s.file.Close() }

// File copies exactly size bytes of r and returns a regular file node over
// them. A reader that ends early is an error that wraps [io.ErrUnexpectedEOF].
func (s *Spool) File(perm fs.FileMode, r io.Reader, size int64) (*Node, error) {
	if size < 0 {
		return nil, fmt.Errorf("spooling a file of %d bytes: %w", size, fs.ErrInvalid)
	}
	node := &Node{Mode: perm, size: size}
	if size == 0 {
		return node, nil
	}
	node.content, node.off = s.file, s.next.Add(size)-size
	n, err := io.Copy(io.NewOffsetWriter(s.file, node.off), io.LimitReader(r, size))
	if err == nil && n < size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("spooling a file after %d of %d bytes: %w", n, size, err)
	}
	return node, nil
}
