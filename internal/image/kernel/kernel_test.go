package kernel

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/forkd-dev/forkd/internal/boot"
	"github.com/forkd-dev/forkd/internal/image/debian/debiantest"
	"github.com/forkd-dev/forkd/internal/image/kernel/kerneltest"
	"github.com/forkd-dev/forkd/internal/image/rootfs"
)

func names(modules []boot.Module) []string {
	var list []string
	for _, m := range modules {
		list = append(list, m.Name)
	}
	return list
}

// zboot wraps a payload as the kernel's EFI zboot does.
func zboot(codec string, payload []byte) []byte {
	b := make([]byte, 64)
	copy(b, "MZ\x00\x00zimg")
	binary.LittleEndian.PutUint32(b[8:], uint32(len(b)))
	binary.LittleEndian.PutUint32(b[12:], uint32(len(payload)))
	copy(b[24:], codec)
	return append(b, payload...)
}

func TestDecodeImage(t *testing.T) {
	raw := kerneltest.Image(5000)
	for _, test := range []struct {
		name string
		file []byte
		fail string
	}{
		{"raw", raw, ""},
		{"gzip", debiantest.Compress(t, raw, ".gz"), ""},
		{"zboot gzip", zboot("gzip", debiantest.Compress(t, raw, ".gz")), ""},
		{"zboot zstd", zboot("zstd22", debiantest.Compress(t, raw, ".zst")), ""},
		{"zboot xz", zboot("xzkern", debiantest.Compress(t, raw, ".xz")), ""},
		{"zboot lzma", zboot("lzma", raw), "not supported"},
		{"zboot without payload", zboot("gzip", nil), "opening"},
		{"zboot payload cut", zboot("gzip", debiantest.Compress(t, raw, ".gz"))[:80], "payload ends"},
		{"elf", append([]byte("\x7fELF"), make([]byte, 100)...), "ELF file"},
		{"short", []byte("MZ"), "hold no header"},
		{"empty", nil, "hold no header"},
		{"gzip of something else", debiantest.Compress(t, make([]byte, 100), ".gz"), "magic number"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := decodeImage(test.file)
			if test.fail == "" {
				if err != nil || !bytes.Equal(got, raw) {
					t.Fatalf("got %d bytes, %v", len(got), err)
				}
				return
			}
			if !errors.Is(err, ErrKernel) || !strings.Contains(err.Error(), test.fail) {
				t.Fatalf("error %q does not say %q", err, test.fail)
			}
		})
	}
}

// deb packs files under a kernel's usual places.
func deb(t *testing.T, image []byte, builtin string, modules map[string][]byte) []byte {
	t.Helper()
	const dir = "./usr/lib/modules/6.1-test/"
	entries := []debiantest.Entry{
		debiantest.File("./boot/config-6.1-test", "CONFIG_X=y\n", 0o644),
		debiantest.File("./boot/vmlinux-6.1-test", string(image), 0o644),
		debiantest.File(dir+"modules.builtin", builtin, 0o644),
	}
	for name, data := range modules {
		entries = append(entries, debiantest.File(dir+"kernel/drivers/"+name, string(data), 0o644))
	}
	return debiantest.Package{Name: "linux-image", Codec: ".xz", Data: entries}.Deb(t)
}

func extract(t *testing.T, file []byte, wants ...Want) (*Kernel, error) {
	t.Helper()
	spool, err := rootfs.NewSpool(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer spool.Close()
	return Extract(context.Background(), bytes.NewReader(file), spool, wants)
}

func TestExtract(t *testing.T) {
	image := kerneltest.Image(4096)
	plain := kerneltest.Module(3, "depends=core-a,built_in", "softdep=pre: soft absent post: later", "name=top")
	file := deb(t, image, "kernel/lib/built-in.ko\nkernel/x/rng-core.ko\n", map[string][]byte{
		"top.ko.xz":      debiantest.Compress(t, kerneltest.Sign(plain), ".xz"),
		"core-a.ko.zst":  debiantest.Compress(t, kerneltest.Module(0, "depends=base"), ".zst"),
		"base.ko":        kerneltest.Module(0, "depends="),
		"soft.ko.gz":     debiantest.Compress(t, kerneltest.Module(0, "depends=base", "softdep=pre: thecrc"), ".gz"),
		"later.ko":       kerneltest.Module(0),
		"crc_generic.ko": kerneltest.Module(0, "alias=crypto-thecrc"),
		"unrelated.ko":   []byte("not even ELF"),
	})
	k, err := extract(t, file, Want{Name: "crc_generic"}, Want{Name: "rng-core"}, Want{Name: "top"}, Want{Name: "nowhere", Optional: true})
	if err != nil {
		t.Fatal(err)
	}
	if k.Release != "6.1-test" || !bytes.Equal(k.Image, image) {
		t.Errorf("release %q, image of %d bytes", k.Release, len(k.Image))
	}
	if got, want := names(k.Modules), []string{"crc_generic", "base", "soft", "core_a", "top"}; !slices.Equal(got, want) {
		t.Errorf("load order %v, want %v", got, want)
	}
	if top := k.Modules[4].Data; bytes.Contains(top, []byte(signatureMagic)) || len(top) >= len(plain) {
		t.Errorf("module of %d bytes was neither stripped of its signature nor trimmed; unsigned it has %d", len(top), len(plain))
	}
}

func TestExtractRefuses(t *testing.T) {
	image := kerneltest.Image(4096)
	loop := map[string][]byte{"a.ko": kerneltest.Module(0, "depends=b"), "b.ko": kerneltest.Module(0, "depends=a")}
	for _, test := range []struct {
		name, want, fail string
		file             []byte
	}{
		{"missing module", "gone", `no module "gone"`, deb(t, image, "", nil)},
		{"missing dependency", "a", `needs "b"`, deb(t, image, "", map[string][]byte{"a.ko": kerneltest.Module(0, "depends=b")})},
		{"cycle", "a", "depends on itself", deb(t, image, "", loop)},
		{"not ELF", "a", "usable kernel", deb(t, image, "", map[string][]byte{"a.ko": []byte("text")})},
		{"damaged compression", "a", "unpacking", deb(t, image, "", map[string][]byte{"a.ko.xz": []byte("text")})},
		{"unknown compression", "a", "not supported", deb(t, image, "", map[string][]byte{"a.ko.lz": []byte("text")})},
		{"no image", "a", "no boot/vmlinuz", debiantest.Package{Data: []debiantest.Entry{debiantest.File("./boot/x", "", 0o644)}}.Deb(t)},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := extract(t, test.file, Want{Name: test.want})
			if err == nil || !strings.Contains(err.Error(), test.fail) {
				t.Fatalf("error %v does not say %q", err, test.fail)
			}
		})
	}
}

// summary lists what must survive trimming: section contents by name and what
// each relocation refers to.
func summary(t *testing.T, module []byte) (sections map[string]string, targets, symbols []string) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		t.Fatal(err)
	}
	all, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		symbols = append(symbols, s.Name)
	}
	sections = map[string]string{}
	for _, s := range f.Sections {
		data, err := s.Data()
		if err != nil && s.Type != elf.SHT_NULL {
			t.Fatal(err)
		}
		switch s.Type {
		case elf.SHT_PROGBITS:
			sections[s.Name] = string(data)
		case elf.SHT_RELA:
			for ; len(data) > 0; data = data[24:] {
				// Symbols leaves out the null symbol.
				targets = append(targets, all[binary.LittleEndian.Uint32(data[12:])-1].Name)
			}
		}
		if s.Type == elf.SHT_SYMTAB && int(s.Info) != slices.Index(symbols, "init_module")+1 {
			t.Errorf("symbol table says that %d symbols are local", s.Info)
		}
	}
	return sections, targets, symbols
}

func TestTrim(t *testing.T) {
	module := kerneltest.Module(1000, "name=x", "depends=")
	trimmed := trim(dropSignature(kerneltest.Sign(module)))
	if len(trimmed) > len(module)-1000*24 {
		t.Errorf("%d bytes became %d", len(module), len(trimmed))
	}
	wantSections, wantTargets, _ := summary(t, module)
	sections, targets, symbols := summary(t, trimmed)
	if !slices.Equal(targets, wantTargets) || !slices.Equal(targets, []string{".Lused"}) {
		t.Errorf("relocations refer to %v, before to %v", targets, wantTargets)
	}
	for name, want := range wantSections {
		if sections[name] != want {
			t.Errorf("section %s changed", name)
		}
	}
	if want := []string{".Lused", "helper", "init_module"}; !slices.Equal(symbols, want) {
		t.Errorf("symbols %v, want %v", symbols, want)
	}
	if again := trim(trimmed); !bytes.Equal(again, trimmed) {
		t.Error("trimming twice differs from once")
	}
}

func TestDropSignatureKeepsOthers(t *testing.T) {
	module := kerneltest.Module(0)
	long := binary.BigEndian.AppendUint32(make([]byte, 8), 1<<31)
	for _, unsigned := range [][]byte{
		nil, module,
		[]byte(signatureMagic),
		append(append(bytes.Clone(module), long...), signatureMagic...),
	} {
		if got := dropSignature(unsigned); !bytes.Equal(got, unsigned) {
			t.Errorf("%d bytes became %d", len(unsigned), len(got))
		}
	}
}

func FuzzModule(f *testing.F) {
	f.Add(kerneltest.Module(2, "depends=a,b", "softdep=pre: c", "alias=d"))
	f.Add(kerneltest.Sign(kerneltest.Module(0)))
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	f.Fuzz(func(t *testing.T, module []byte) {
		unsigned := dropSignature(module)
		if len(unsigned) > len(module) {
			t.Fatal("dropping a signature made the module longer")
		}
		trimmed := trim(unsigned)
		if _, err := readModinfo(unsigned); err != nil {
			return
		}
		f, err := elf.NewFile(bytes.NewReader(unsigned))
		if err != nil || f.Section(".modinfo").Type != elf.SHT_PROGBITS {
			return // a table that trimming may rewrite
		}
		before, _ := f.Section(".modinfo").Data()
		f, err = elf.NewFile(bytes.NewReader(trimmed))
		if err != nil {
			t.Fatal(err)
		}
		if after, err := f.Section(".modinfo").Data(); err != nil || !bytes.Equal(before, after) {
			t.Fatalf("modinfo %q became %q, %v", before, after, err)
		}
	})
}

func FuzzDecodeImage(f *testing.F) {
	f.Add(kerneltest.Image(100))
	f.Add(zboot("gzip", []byte{0x1f, 0x8b}))
	f.Add(zboot("none", nil))
	f.Add(bzImage(packed(elfKernel(elf.EM_X86_64)), 100))
	f.Fuzz(func(t *testing.T, file []byte) {
		raw, err := decodeImage(file)
		if err != nil {
			return
		}
		if isBzImage(file) {
			err = boot.CheckELF(raw)
		} else {
			_, err = boot.ParseImage(raw, int64(len(raw)))
		}
		if err != nil {
			t.Fatalf("decoded an image that does not parse: %v", err)
		}
	})
}
