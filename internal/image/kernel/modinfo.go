package kernel

import (
	"bytes"
	"debug/elf"
	"fmt"
	"strings"
)

const maxModinfo = 1 << 20 // bytes of a module's modinfo section

// modinfo is what a module says of itself.
type modinfo struct {
	depends []string // modules whose symbols it uses
	pre     []string // modules or aliases it would like to have loaded before
	aliases []string
}

// readModinfo parses the .modinfo section of a module: NUL-separated key=value
// strings.
func readModinfo(module []byte) (*modinfo, error) {
	file, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKernel, err)
	}
	defer file.Close()
	section := file.Section(".modinfo")
	if section == nil || section.Type == elf.SHT_NOBITS || section.Size > maxModinfo {
		return nil, fmt.Errorf("%w: module without a usable modinfo section", ErrKernel)
	}
	text, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("%w: reading modinfo: %w", ErrKernel, err)
	}
	info := &modinfo{}
	for entry := range strings.SplitSeq(string(text), "\x00") {
		key, value, _ := strings.Cut(entry, "=")
		switch key {
		case "depends":
			info.depends = append(info.depends, strings.FieldsFunc(value, func(r rune) bool { return r == ',' })...)
		case "softdep":
			info.pre = append(info.pre, softPre(value)...)
		case "alias":
			info.aliases = append(info.aliases, value)
		}
	}
	return info, nil
}

// softPre returns the names after "pre:" in a soft dependency, which may be
// followed by "post:" and more names.
func softPre(value string) []string {
	var names []string
	in := false
	for word := range strings.FieldsSeq(value) {
		switch word {
		case "pre:":
			in = true
		case "post:":
			in = false
		default:
			if in {
				names = append(names, word)
			}
		}
	}
	return names
}

// canonical spells a module's name as the kernel does: with underscores.
func canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }
