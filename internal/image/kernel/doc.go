// Package kernel takes out of a Debian kernel package what a guest boots from:
// the raw kernel image and the modules it needs, with all they depend on, in an
// order in which they can be loaded one after the other.
//
// Dependencies come from the modules' own modinfo section, since the package
// holds no modules.dep (depmod makes it when a kernel is installed). Modules
// built into the kernel are known from modules.builtin.
//
// The image may be stored raw, gzip-compressed or as an EFI zboot file; others
// are refused with what they are. Every file is treated as hostile: sizes are
// capped and ELF headers parsed by the standard library only.
package kernel
