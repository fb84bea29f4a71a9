package boot

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"
	"strings"
)

// Module is a kernel module for the initramfs.
type Module struct {
	Name string // without .ko, for example "virtio_blk"
	Data []byte // the ELF file, not compressed
}

// File modes with type bits, as cpio stores them.
const (
	modeDir     = 0o040755
	modeRegular = 0o100000
	modeFile    = 0o100644
	modeExec    = 0o100755
	modeChar    = 0o020600
)

// WriteModules writes an archive with modules as /lib/modules/<name>.ko and
// /etc/modules.load, which lists their file names one a line in load order: the
// order given.
//
// The kernel unpacks concatenated archives one after the other, so what
// WriteModules and [WriteInit] write, in that order, is one initramfs. They are
// apart because the modules change with the kernel and the init program does
// with forkd.
func WriteModules(w io.Writer, modules []Module) error {
	c := newCPIO(w)
	c.dir("lib")
	c.dir("lib/modules")
	c.dir("etc")
	var order strings.Builder
	for _, m := range modules {
		if m.Name == "" || strings.ContainsAny(m.Name, "/\n\x00") {
			return fmt.Errorf("writing the initramfs: module name %q", m.Name)
		}
		c.file("lib/modules/"+m.Name+".ko", modeFile, m.Data)
		order.WriteString(m.Name + ".ko\n")
	}
	c.file("etc/modules.load", modeFile, []byte(order.String()))
	return c.close()
}

// WriteInit writes an archive with the first process's program as /init, the
// directories it mounts on, /dev/console, which the kernel opens for it before
// there is a devtmpfs, and /dev/null: with a console that only a module brings,
// that open fails, and a Go program which starts without its three standard
// files ends at once unless it can open /dev/null in their place.
func WriteInit(w io.Writer, init []byte) error {
	c := newCPIO(w)
	for _, dir := range []string{"dev", "proc", "sys", "run", "newroot"} {
		c.dir(dir)
	}
	c.entry("dev/console", modeChar, 5, 1, nil)
	c.entry("dev/null", modeChar, 1, 3, nil)
	c.file("init", modeExec, init)
	return c.close()
}

// File is a regular file for the initramfs.
type File struct {
	Path string // relative, slash-separated
	Mode uint32 // permissions
	Data []byte
}

// WriteFiles writes an archive with files and the directories they lie in.
func WriteFiles(w io.Writer, files []File) error {
	c := newCPIO(w)
	made := map[string]bool{".": true}
	var mkdir func(dir string)
	mkdir = func(dir string) {
		if !made[dir] {
			made[dir] = true
			mkdir(path.Dir(dir))
			c.dir(dir)
		}
	}
	for _, f := range files {
		if !fs.ValidPath(f.Path) {
			return fmt.Errorf("writing the initramfs: path %q", f.Path)
		}
		mkdir(path.Dir(f.Path))
		c.file(f.Path, modeRegular|f.Mode&0o7777, f.Data)
	}
	return c.close()
}

// cpio writes the "newc" format without checksums: per entry a header of 13
// fields of 8 hexadecimal digits, the name and the contents, each padded to 4
// bytes. Owner and times are all zero.
type cpio struct {
	w   *bufio.Writer
	off int64
	ino uint32
	err error // the first one
}

func newCPIO(w io.Writer) *cpio { return &cpio{w: bufio.NewWriterSize(w, 1<<16)} }

func (c *cpio) dir(name string)                            { c.entry(name, modeDir, 0, 0, nil) }
func (c *cpio) file(name string, mode uint32, data []byte) { c.entry(name, mode, 0, 0, data) }

func (c *cpio) entry(name string, mode, major, minor uint32, data []byte) {
	if len(data) > math.MaxUint32 && c.err == nil {
		c.err = fmt.Errorf("%s: %d bytes, at most %d fit", name, len(data), uint32(math.MaxUint32))
	}
	links := 1
	if mode == modeDir {
		links = 2
	}
	c.ino++
	c.print("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		c.ino, mode, 0, 0, links, 0, uint32(len(data)), 0, 0, major, minor, len(name)+1, 0, name)
	c.pad()
	c.write(data)
	c.pad()
}

func (c *cpio) print(format string, args ...any) { c.write(fmt.Appendf(nil, format, args...)) }

func (c *cpio) pad() { c.write(make([]byte, -c.off&3)) }

func (c *cpio) write(p []byte) {
	if c.err != nil {
		return
	}
	n, err := c.w.Write(p)
	c.off += int64(n)
	c.err = err
}

func (c *cpio) close() error {
	c.print("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, len(trailer)+1, 0, trailer)
	c.pad()
	if c.err == nil {
		c.err = c.w.Flush()
	}
	if c.err != nil {
		return fmt.Errorf("writing the initramfs: %w", c.err)
	}
	return nil
}

const trailer = "TRAILER!!!"
