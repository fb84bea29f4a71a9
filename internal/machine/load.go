package machine

import (
	"fmt"

	"github.com/forkd-dev/forkd/internal/board"
	"github.com/forkd-dev/forkd/internal/boot"
	"github.com/forkd-dev/forkd/internal/engine"
	"github.com/forkd-dev/forkd/internal/memory"
	"github.com/forkd-dev/forkd/internal/page"
)

// dtbRoom is kept at the end of RAM for the device tree.
const dtbRoom = 2 << 20

// load puts kernel, initramfs and device tree into RAM: the kernel where its
// header wants it, the device tree at the end, the initramfs before that.
func load(space *memory.Space, cfg Config) (*engine.Boot, error) {
	ram := space.Slots()[0].Size()
	head := cfg.Boot.Kernel[:min(len(cfg.Boot.Kernel), boot.HeaderSize)]
	img, err := boot.ParseImage(head, int64(len(cfg.Boot.Kernel)))
	if err != nil {
		return nil, err
	}
	b := board.Board{
		RAMBytes:    ram,
		VCPUs:       cfg.VCPUs,
		CommandLine: cfg.Boot.CommandLine,
		InitrdSize:  uint64(len(cfg.Boot.Initrd)),
		Seed:        cfg.Boot.Seed,
	}
	kernelEnd := img.TextOffset + img.Size
	if kernelEnd+b.InitrdSize+dtbRoom+page.Size > ram {
		return nil, fmt.Errorf("kernel (%d MiB) and initramfs (%d MiB) do not fit into %d MiB of guest memory",
			img.Size>>20, b.InitrdSize>>20, ram>>20)
	}
	b.InitrdStart = board.RAMBase + (ram-dtbRoom-b.InitrdSize)&^(page.Size-1)
	if err := b.Validate(); err != nil {
		return nil, err
	}
	start := &engine.Boot{Entry: board.RAMBase + img.TextOffset, Params: board.RAMBase + ram - dtbRoom}
	for _, part := range []struct {
		at   uint64
		data []byte
	}{{start.Entry, cfg.Boot.Kernel}, {b.InitrdStart, cfg.Boot.Initrd}, {start.Params, b.DeviceTree()}} {
		if err := space.Write(part.at, part.data); err != nil {
			return nil, fmt.Errorf("loading the kernel: %w", err)
		}
	}
	return start, nil
}
