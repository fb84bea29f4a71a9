package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/forkd-dev/forkd/bench/qemu/suite"
)

const qemuProgram = "qemu-system-riscv64"

// qemu runs machines on QEMU's emulator.
type qemu struct {
	path string
}

// findQEMU looks for the program.
func findQEMU() (*qemu, error) {
	path, err := exec.LookPath(qemuProgram)
	if err != nil {
		return nil, fmt.Errorf("%s is not installed: install the Debian package qemu-system-misc (qemu-system-riscv in releases that have it): %w", qemuProgram, err)
	}
	return &qemu{path}, nil
}

// version returns the first line of what QEMU says of itself.
func (q *qemu) version(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, q.path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("asking %s for its version: %w", q.path, err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line, nil
}

// arguments describe the board: what forkd's has, on QEMU's "virt" machine.
func (q *qemu) arguments(s spec) []string {
	args := []string{
		"-M", "virt", "-cpu", "rv64", "-smp", "1", "-m", strconv.Itoa(s.memoryMiB),
		"-accel", "tcg",
		"-no-user-config", "-nodefaults", "-display", "none", "-no-reboot",
		"-global", "virtio-mmio.force-legacy=false",
		"-kernel", s.kernel, "-initrd", s.initrd, "-append", s.commandLine + s.messages("uart8250,mmio,0x10000000"),
		"-drive", "if=none,id=root,format=raw,readonly=on,file=" + escape(s.root),
		"-device", "virtio-blk-device,drive=root,serial=rootfs",
		"-drive", "if=none,id=scratch,format=raw,cache=unsafe,discard=unmap,file=" + escape(s.scratch),
		"-device", "virtio-blk-device,drive=scratch,serial=scratch",
		"-device", "virtio-rng-device",
		"-chardev", "stdio,id=console,signal=off",
		"-device", "virtio-serial-device", "-device", "virtconsole,chardev=console",
	}
	if s.verbose != nil {
		args = append(args, "-serial", "file:/dev/stderr")
	}
	return args
}

// escape protects the commas of a path in a list of options.
func escape(path string) string { return strings.ReplaceAll(path, ",", ",,") }

// start implements monitor.
func (q *qemu) start(ctx context.Context, s spec, console io.Writer) (machine, error) {
	ctx, cancel := context.WithCancel(ctx)
	p := &qemuProcess{cancel: cancel, ended: make(chan struct{}), stderr: suite.Tail{Limit: 1000}}
	cmd := exec.CommandContext(ctx, q.path, q.arguments(s)...)
	cmd.Stdout = console
	cmd.Stderr = &p.stderr
	if s.verbose != nil {
		cmd.Stderr = io.MultiWriter(&p.stderr, s.verbose)
	}
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("starting %s: %w", q.path, err)
	}
	p.pid = cmd.Process.Pid
	go func() {
		defer close(p.ended)
		p.err = cmd.Wait()
	}()
	return p, nil
}

// qemuProcess is a machine on QEMU.
type qemuProcess struct {
	pid    int
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // why it ended; written before ended is closed
	stderr suite.Tail
}

func (p *qemuProcess) done() <-chan struct{} { return p.ended }

func (p *qemuProcess) ending() error {
	if p.err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w: %s", qemuProgram, p.err, bytes.TrimSpace(p.stderr.Text))
}

// used knows no instructions: counting them would slow QEMU down.
func (p *qemuProcess) used() usage { return usage{cpu: cpuTime(p.pid)} }

func (p *qemuProcess) close() {
	p.cancel()
	<-p.ended
}
