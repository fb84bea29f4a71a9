package interp

// orCombine sets every byte that is not zero to all ones.
func orCombine(a uint64) uint64 {
	const low7 = 0x7f7f7f7f7f7f7f7f
	high := ((a & low7) + low7 | a) &^ low7 // the top bit of each such byte
	return high >> 7 * 0xff
}

func sext32(v uint64) uint64 { return uint64(int64(int32(v))) }
