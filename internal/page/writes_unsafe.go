package page

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// scanRequest is struct pm_scan_arg of the kernel's linux/fs.h, and scanRegion struct
// page_region.
type (
	scanRequest struct {
		size, flags, start, end, walkEnd uint64
		regions                          *scanRegion
		room, most                       uint64
		inverted, mask, anyOf, tell      uint64
	}
	scanRegion struct{ start, end, _ uint64 }
)

const (
	requestScan = 0xc060_6610 // PAGEMAP_SCAN

	scanProtect = 1 << 0 // protect the pages that match
	scanCheck   = 1 << 1 // fail where that is not possible

	pageWritten = 1 << 1
	pageOfFile  = 1 << 2
	pagePresent = 1 << 3
	pageSwapped = 1 << 4
	pageOfZeros = 1 << 5
)

// pagemapScan makes the request, and returns how many regions it has filled in.
func pagemapScan(fd int, arg *scanRequest, regions []scanRegion) (int, error) {
	arg.size, arg.tell = uint64(unsafe.Sizeof(*arg)), arg.anyOf
	arg.regions, arg.room = unsafe.SliceData(regions), uint64(len(regions))
	n, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), requestScan, uintptr(unsafe.Pointer(arg)))
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

// Of the kernel's linux/userfaultfd.h.
const (
	faultsAPI      = 0xaa
	faultsUserOnly = 1

	requestEnable   = 0xc018_aa3f // UFFDIO_API
	requestRegister = 0xc020_aa00 // UFFDIO_REGISTER

	featureUnpopulated = 1 << 13 // pages that are not there can be protected
	featureAsync       = 1 << 15 // nobody is told
	registerProtect    = 1 << 1
)

// enableFaults chooses the kind of watching that nobody is told of.
func enableFaults(fd int) error {
	arg := struct{ api, features, requests uint64 }{api: faultsAPI, features: featureUnpopulated | featureAsync}
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), requestEnable, uintptr(unsafe.Pointer(&arg)))
	if e != 0 {
		return e
	}
	return nil
}

// registerFaults makes it possible to protect pages of memory.
func registerFaults(fd int, mem []byte) error {
	arg := struct{ start, size, mode, requests uint64 }{uint64(address(mem)), uint64(len(mem)), registerProtect, 0}
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), requestRegister, uintptr(unsafe.Pointer(&arg)))
	if e != 0 {
		return e
	}
	return nil
}
