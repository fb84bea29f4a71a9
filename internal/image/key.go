package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"

	"github.com/forkd-dev/forkd/internal/image/kernel"
)

// recipeVersion changes whenever the same packages give other files: after a
// change to the fix-ups, to what is left out, or to how files are written.
const recipeVersion = 3

// digest returns the first half of the SHA-256 of v as JSON, in hex. JSON keeps
// apart what concatenation would run together.
func digest(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic("BUG: key material that is no JSON: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// request identifies the options of a build, without knowing what the mirror
// has.
func (b *builder) request() string {
	return digest([]any{"request", formatVersion, recipeVersion, suite, b.Arch, b.base, b.modules, b.extra(), sumOf(b.Agent)})
}

// extra returns the packages to add to the default set, so that neither order
// nor repetition makes a difference.
func (b *builder) extra() []string {
	names := slices.Compact(slices.Sorted(slices.Values(b.Packages)))
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(b.base, name) })
}

// baseKey identifies kernel, modules and root file system.
func baseKey(arch string, p *plan, modules []kernel.Want) string {
	return digest([]any{"base", formatVersion, recipeVersion, suite, arch, packageList(p), modules})
}

// imageKey identifies a whole image.
func imageKey(base string, agent []byte) string {
	return digest([]any{"image", base, sumOf(agent)})
}

// packageList is what the manifest says of packages; the kernel's is the last.
func packageList(p *plan) []Package {
	list := make([]Package, 0, len(p.packages)+1)
	for _, d := range append(slices.Clone(p.packages), p.kernel) {
		list = append(list, Package{d.Name, d.Version, d.SHA256})
	}
	return list
}
