package warm

import "unsafe"

// bytesOf returns the memory of some words. They are written as words because this is done in every child, and byte by byte
// takes several times as long.
func bytesOf(words []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), 8*len(words))
}
