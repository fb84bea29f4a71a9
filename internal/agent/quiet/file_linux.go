package quiet

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// File is an open file on a file system whose writes cannot block.
type File struct {
	fd uintptr
}

// FileOf returns a File for a descriptor that somebody else keeps open.
func FileOf(f *os.File) *File { return &File{fd: f.Fd()} }

// WriteAt overwrites bytes of the file.
func (f *File) WriteAt(p []byte, offset int64) error {
	n, errno := pwrite(f.fd, p, offset)
	if errno != 0 {
		return os.NewSyscallError("pwrite", errno)
	}
	if n != len(p) {
		return fmt.Errorf("short write of %d of %d bytes", n, len(p))
	}
	return nil
}

// Mapped is a short file in memory (tmpfs) that is mapped as well.
type Mapped struct {
	File
	mem  []byte
	size int // as far as is known
}

// MaxMapped is how long a Mapped may be, in bytes.
const MaxMapped = 4096

// CreateMapped makes or empties a file and keeps it open for the life of the process.
func CreateMapped(path string, mode uint32) (*Mapped, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC|unix.O_NOFOLLOW, mode)
	if err != nil {
		return nil, fmt.Errorf("making %s: %w", path, err)
	}
	mem, err := unix.Mmap(fd, 0, MaxMapped, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("mapping %s: %w", path, err)
	}
	return &Mapped{File{uintptr(fd)}, mem, 0}, nil
}

// Replace makes p, at most MaxMapped bytes, the whole content, whatever others have made of the file. Readers may see a mixture
// while it runs.
func (m *Mapped) Replace(p []byte) error {
	m.size = MaxMapped
	return m.Rewrite(p)
}

// Rewrite is Replace if nobody else has changed the file's length since.
func (m *Mapped) Rewrite(p []byte) error {
	if len(p) > MaxMapped {
		return fmt.Errorf("content of %d bytes, at most %d", len(p), MaxMapped)
	}
	if err := m.WriteAt(p, 0); err != nil {
		return err
	}
	if len(p) < m.size {
		if errno := ftruncate(m.fd, int64(len(p))); errno != 0 {
			return os.NewSyscallError("ftruncate", errno)
		}
	}
	m.size = len(p)
	return nil
}

// Overwrite is Rewrite with content of the same length, without a system call: nobody is notified, and the file keeps its
// times. It does nothing and reports false if the length is another one. Preconditions: nobody else makes the file shorter
// while it runs; it would be a fault of this process.
func (m *Mapped) Overwrite(p []byte) bool {
	if len(p) != m.size {
		return false
	}
	copy(m.mem, p)
	return true
}
