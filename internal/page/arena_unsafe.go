package page

import "unsafe"

// address returns where b begins in host memory.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// pageAddress returns where p lies in host memory.
func pageAddress(p *Page) uintptr { return uintptr(unsafe.Pointer(p)) }

// words returns a page as words of the host, which compare as the guest's do.
// Pages are aligned.
func words(p *Page) *[pageWords]uint64 { return (*[pageWords]uint64)(unsafe.Pointer(p)) }
