package warm

import "unsafe"

// bytesOf returns the memory of some words. They are written as words because this is done in every child, and byte by byte
// takes several times as long.
func bytesOf(words []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), 8*len(words))
}

// wordAt returns the word at an offset, a multiple of 8, of memory that begins at such an address.
func wordAt(mem []byte, offset int) *uint64 {
	return (*uint64)(unsafe.Pointer(&mem[offset : offset+8][0]))
}
