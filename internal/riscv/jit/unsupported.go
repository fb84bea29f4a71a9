//go:build !(linux && amd64)

package jit

import (
	"errors"

	"github.com/forkd-dev/forkd/internal/page"
	"github.com/forkd-dev/forkd/internal/riscv/hart"
	"github.com/forkd-dev/forkd/internal/riscv/mmu"
)

// Supported reports whether this host can execute what the package makes.
func Supported() bool { return false }

// The rest is here so that callers compile; none of it is ever called.

type Cache struct{}

func NewCache(size int) *Cache { return new(Cache) }
func (c *Cache) Bytes() int    { return 0 }
func (c *Cache) SetParallel()  {}
func (c *Cache) Translate(p *page.Page, native *Page, off uint16) (*Page, Made, error) {
	return nil, Made{}, errors.ErrUnsupported
}

type Table [page.Size / 2]uint32

const TableSize = page.Size / 2 * 4

type Made struct {
	Blocks int
	Share  float64
}

type Page struct{}

type Context struct {
	Loads, Stores *mmu.Bank[mmu.Host]
	Space         uint64
}

type Miss struct {
	VA     uint64
	Store  bool
	Early  bool
	Pinned bool
}

type Stop uint8

const (
	Elsewhere Stop = iota
	Slow
	Spent
)

func (x *Context) Attach(cache *Cache, h *hart.Hart)  {}
func (x *Context) Sync()                              {}
func (x *Context) Rest()                              {}
func (x *Context) Switch()                            {}
func (x *Context) Bank(m hart.Mode) *mmu.Bank[*Table] { return new(mmu.Bank[*Table]) }
func (x *Context) Flush()                             {}
func (x *Context) Usable(p *Page) bool                { return false }
func (x *Context) Has(p *Page, off uint16) bool       { return false }
func (x *Context) Know(hart.Mode, uint64, *Page)      {}
func (x *Context) Enter(p *Page, n int) (Stop, int)   { return Elsewhere, n }
func (x *Context) Miss() (_ Miss, ok bool)            { return Miss{}, false }
func (x *Context) Retry(n int) (Stop, int)            { return Elsewhere, n }
func (x *Context) Slow() int                          { return 0 }
func (x *Context) Resumable(n int) bool               { return false }
func (x *Context) Resume(n int) (Stop, int)           { return Elsewhere, n }
