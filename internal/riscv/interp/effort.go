package interp

// Some of what a guest can ask for with one instruction takes as long as thousands of others:
// caches are emptied, pages decoded or translated. Whoever counts a machine's instructions
// to know when others are due would be wrong by a factor of thousands. So a CPU that is
// Prompt counts such work, too, and ends a Run when it has taken as much of its time as the
// instructions that are left would. How many instructions a Run executes then depends on
// whether code is native, which is why not all are Prompt.
//
// The unit is the time of one instruction in a busy guest, some 5 ns. What FENCE.I, emptying
// all caches, decoding and translating take is rounded from what slices of nothing else took on
// one host; the others are estimates, which only have to be of the right order.
const (
	effortExit      = 20    // native code is left for an instruction
	effortTrap      = 40    // an exception or interrupt
	effortRefill    = 60    // an entry of the TLB is looked up
	effortMove      = 400   // a page becomes the machine's own
	effortMode      = 300   // the entries of a mode are dropped
	effortCode      = 700   // FENCE.I
	effortFlush     = 1_600 // all entries are dropped
	effortDecode    = 2_000 // a page is decoded
	effortTranslate = 4_000 // a region is translated
)

// weary reports whether a Run has to end with n instructions left.
func (c *CPU) weary(n int) bool { return c.effort >= n && c.Prompt }
