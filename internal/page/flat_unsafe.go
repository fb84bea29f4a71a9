package page

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapOver maps part of a file, copy-on-write, over memory that was mapped before.
func mapOver(mem []byte, file *os.File, offset int64) error {
	_, err := unix.MmapPtr(int(file.Fd()), offset, unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_FIXED|unix.MAP_NORESERVE)
	return err
}
