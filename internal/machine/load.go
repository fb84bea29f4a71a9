package machine

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"

	"github.com/forkd-dev/forkd/internal/board"
	"github.com/forkd-dev/forkd/internal/boot"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
)

// load puts kernel, initramfs and what describes the board into RAM, as the board's
// kernels want it.
func load(m *board.Map, space *memory.Space, cfg Config) (*engine.Boot, error) {
	b := board.Board{
		Map:         m,
		RAMBytes:    size(space),
		VCPUs:       cfg.VCPUs,
		CommandLine: cfg.Boot.CommandLine,
		InitrdSize:  uint64(len(cfg.Boot.Initrd)),
		Seed:        cfg.Boot.Seed,
	}
	if m == &board.AMD64 {
		return loadELF(&b, space, cfg.Boot)
	}
	return loadImage(&b, space, cfg.Boot)
}

// size returns how many bytes of memory there are.
func size(space *memory.Space) (bytes uint64) {
	for _, s := range space.Slots() {
		bytes += s.Size()
	}
	return bytes
}

// dtbRoom is kept at the end of RAM for the device tree.
const dtbRoom = 2 << 20

// loadImage loads a raw image where its header wants it, the device tree at the end
// of RAM, and the initramfs before that.
func loadImage(b *board.Board, space *memory.Space, c *Boot) (*engine.Boot, error) {
	img, err := boot.ParseImage(c.Kernel[:min(len(c.Kernel), boot.HeaderSize)], int64(len(c.Kernel)))
	if err != nil {
		return nil, err
	}
	if err := placeInitrd(b, img.TextOffset+img.Size, b.RAMBytes-dtbRoom); err != nil {
		return nil, err
	}
	start := &engine.Boot{Entry: b.Map.RAMBase + img.TextOffset, Params: b.Map.RAMBase + b.RAMBytes - dtbRoom}
	return start, write(space, []board.Part{
		{GPA: start.Entry, Data: c.Kernel}, {GPA: b.InitrdStart, Data: c.Initrd}, {GPA: start.Params, Data: b.DeviceTree()},
	})
}

// loadELF loads the segments of a kernel that is an ELF file to their physical
// addresses, boot parameters and tables below them, and the initramfs at the end of
// RAM.
func loadELF(b *board.Board, space *memory.Space, c *Boot) (*engine.Boot, error) {
	if err := boot.CheckELF(c.Kernel); err != nil {
		return nil, err
	}
	f, err := elf.NewFile(bytes.NewReader(c.Kernel))
	if err != nil {
		return nil, err
	}
	var parts []board.Part
	var end uint64
	room := b.Map.RAM(b.RAMBytes)[0].Size
	for _, p := range f.Progs {
		if p.Type != elf.PT_LOAD {
			continue
		}
		if p.Paddr > room || p.Memsz > room-p.Paddr || p.Filesz > p.Memsz {
			return nil, fmt.Errorf("%w: a segment of %d bytes at %#x does not fit into %d MiB of guest memory", boot.ErrELF, p.Memsz, p.Paddr, room>>20)
		}
		data := make([]byte, p.Filesz)
		if _, err := io.ReadFull(p.Open(), data); err != nil {
			return nil, fmt.Errorf("%w: a segment is cut short", boot.ErrELF)
		}
		parts = append(parts, board.Part{GPA: p.Paddr, Data: data})
		end = max(end, p.Paddr+p.Memsz)
	}
	if err := placeInitrd(b, end, room); err != nil {
		return nil, err
	}
	params, tables := b.Params()
	parts = append(append(parts, tables...), board.Part{GPA: b.InitrdStart, Data: c.Initrd})
	return &engine.Boot{Entry: f.Entry, Params: params}, write(space, parts)
}

// placeInitrd puts the initramfs before the end of what is free, as offsets into RAM,
// and checks the board.
func placeInitrd(b *board.Board, kernelEnd, end uint64) error {
	if kernelEnd+b.InitrdSize+page.Size > end {
		return fmt.Errorf("kernel (%d MiB) and initramfs (%d MiB) do not fit into %d MiB of guest memory",
			kernelEnd>>20, b.InitrdSize>>20, end>>20)
	}
	b.InitrdStart = b.Map.RAMBase + (end-b.InitrdSize)&^(page.Size-1)
	return b.Validate()
}

func write(space *memory.Space, parts []board.Part) error {
	for _, p := range parts {
		if err := space.Write(p.GPA, p.Data); err != nil {
			return fmt.Errorf("loading the kernel: %w", err)
		}
	}
	return nil
}
