package interp

// Some ops are executed in pairs: the first has a code of its own whose case
// does the work of both, and so saves a dispatch. The second op keeps its slot
// and its code, for jumps that lead to it and for the rare paths: a case that
// needs more than the run loop stops at the op that needs it.
//
// The pairs are those that the kernel and Python execute most. Half as many again
// gained nothing that could be measured.

// fusions lists, by first op, what it is fused with; firstOf is the way back.
var fusions, firstOf = buildFusions()

type fusion struct{ second, both code }

func buildFusions() (by [256][]fusion, first [256]code) {
	for c := range first {
		first[c] = code(c)
	}
	for _, p := range pairs {
		by[p.first] = append(by[p.first], fusion{p.second, p.both})
		first[p.both] = p.first
	}
	return by, first
}

// fuse makes pairs of the ops of a page.
func (c *Code) fuse() {
	for i := range slots {
		o := &c.ops[i]
		if len(fusions[o.code]) == 0 {
			continue
		}
		second := c.ops[i+int(o.code.length())].code
		for _, f := range fusions[o.code] {
			if f.second == second {
				o.code = f.both
				break
			}
		}
	}
}

// plain returns the op without what it is fused with.
func (o *op) plain() op {
	p := *o
	p.code = firstOf[o.code]
	return p
}
