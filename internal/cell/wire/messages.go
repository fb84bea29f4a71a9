package wire

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/forkd-dev/forkd/internal/machine"
	"github.com/forkd-dev/forkd/internal/page"
)

// Op is what is asked of a cell, or what it tells.
type Op string

// Requests and notices of the daemon, with the type of their body and, for requests, of
// the answer's.
const (
	OpHello  Op = "hello"  // Hello -> Welcome
	OpList   Op = "list"   // List -> State: what the cell has, a part at a time
	OpLayer  Op = "layer"  // notice, Layer and one file: makes a layer known
	OpForget Op = "forget" // notice, Ref: the layer is not needed any more
	OpSource Op = "source" // notice, Source, state as the blob
	OpDrop   Op = "drop"   // notice, Ref: nothing more is forked from the source
	OpFork   Op = "fork"   // Fork, the children as the blob -> Born
	OpBoot   Op = "boot"   // Boot, kernel and initramfs as files -> nothing
	OpStart  Op = "start"  // Ref -> Started
	OpPause  Op = "pause"  // Ref -> nothing
	OpCut    Op = "cut"    // Cut -> Source, state as the blob
	OpStacks Op = "stacks" // Ref of a source -> Source, whose stacks are as they are now
	OpFetch  Op = "fetch"  // Ref of a layer, a file to write its pages to -> Fetched, page numbers as the blob
	OpReturn Op = "return" // Ref of a source -> its state as the blob
	OpFile   Op = "file"   // Ref of a layer -> Layer, page numbers as the blob, and its file
	OpFiles  Op = "files"  // Files, and a file for each run that has one -> Filed
	OpPin    Op = "pin"    // Pin -> nothing
	OpNote   Op = "note"   // notice, Note
	OpStats  Op = "stats"  // Stats -> []Stat
	OpClose  Op = "close"  // Ref -> []Stat, of which there is one if it was there: ends the machine
	OpQuit   Op = "quit"   // notice: ends the cell
)

// Events of a cell, with the type of their body.
const (
	OpEnded   Op = "ended"   // Ended
	OpConsole Op = "console" // Ref, what a booted guest has printed as the blob
)

// Ref names a layer, a source or a machine by its number.
type Ref struct {
	ID uint64 `json:"id"`
}

// Hello is the first request.
type Hello struct {
	Cell string `json:"cell"` // its name; another cell refuses
}

// Welcome answers Hello.
type Welcome struct {
	Jail []string `json:"jail,omitempty"` // what the cell could not be kept from, in words
}

// List asks for the sources and machines that have larger numbers.
type List struct {
	After uint64 `json:"after,omitempty"`
}

// State is a part of what a cell has, in the order of numbers: all of it may be more than a
// message holds.
type State struct {
	Sources []Source `json:"sources,omitempty"`
	VMs     []VM     `json:"vms,omitempty"`
	// Common are notes that several of the machines may have, each once.
	Common []json.RawMessage `json:"common,omitempty"`
	// Next is what the next part comes after; 0: there is none.
	Next uint64 `json:"next,omitempty"`
}

// StateBytes is about how much a State holds at least if another one follows.
const StateBytes = 1 << 20

// CheckNote refuses a note that is too long for a State.
func CheckNote(note []byte) error {
	if len(note) > maxNote {
		return fmt.Errorf("a note of %d bytes is too long, the most is %d", len(note), maxNote)
	}
	return nil
}

// Layer describes a layer that comes as a file. Page numbers of one of kind page.Pages
// are the blob: Stored of them, then the holes.
type Layer struct {
	ID     uint64      `json:"id"`
	Kind   page.Kind   `json:"kind"`
	Limit  page.Number `json:"limit"`
	Stored int         `json:"stored,omitempty"`
}

// SealedBit is set in the numbers that the cell gives to layers: to those that its
// machines have sealed, and to the files that have replaced such.
const SealedBit = 1 << 63

// MaxLayers is how many layers a stack may have that a cell tells of: the daemon opens a
// file for each that it has to write. A machine has more when more children of it live that
// were each forked at another moment.
const MaxLayers = 4096

// Stack is an address space: layers by number, bottom first. The cell may replace the
// layers that it has numbered by others of the same contents, as long as nobody is told.
type Stack struct {
	Limit  page.Number `json:"limit"`
	Layers []uint64    `json:"layers"`
	// Base is how many of them the machine that was cut was made over.
	Base int `json:"base,omitempty"`
}

// Files tells that layers have files now, for the cell to have pages in these instead of
// in memory.
type Files struct {
	Source uint64    `json:"source"` // what was written
	Runs   []FileRun `json:"runs"`
}

// FileRun is layers that lie on one another, bottom first, and have one file together.
type FileRun struct {
	Layers []uint64 `json:"layers"`
	Empty  bool     `json:"empty,omitempty"` // they hold nothing, and there is no file
}

// Filed tells the numbers of the layers that the files are now, 0 of those that nobody
// needs or that are not what they were said to be.
type Filed struct {
	Layers []uint64 `json:"layers"`
}

// Source is what machines are forked from.
type Source struct {
	ID      uint64          `json:"id"`
	VCPUs   int             `json:"vcpus"`
	Memory  Stack           `json:"memory"`
	Scratch Stack           `json:"scratch"`
	Root    Stack           `json:"root"`
	Note    json.RawMessage `json:"note,omitempty"` // the daemon's, kept for a later one
}

// Fork asks for machines of a source.
type Fork struct {
	Source uint64 `json:"source"`
	// MemoryPages bounds how many pages each may have to itself; 0 is no bound.
	MemoryPages int `json:"memory_pages,omitempty"`
	// Limits are of each. DiskBytes does not count what it has inherited.
	Limits machine.Limits  `json:"limits"`
	Note   json.RawMessage `json:"note,omitempty"` // the daemon's, of all of them
}

// Boot asks for a machine that starts a kernel, with an empty scratch disk.
type Boot struct {
	ID           uint64      `json:"id"`
	VCPUs        int         `json:"vcpus"`
	Memory       page.Number `json:"memory"`  // pages
	Scratch      page.Number `json:"scratch"` // pages
	Root         Stack       `json:"root"`
	CommandLine  string      `json:"command_line"`
	KernelSize   int64       `json:"kernel_size"`
	InitrdSize   int64       `json:"initrd_size"`
	ScratchEmpty bool        `json:"scratch_empty,omitempty"` // of zeros, not formatted
}

// Born tells what became of a Fork.
type Born struct {
	// Age is the guests' time counter, in ns: how old they are.
	Age int64 `json:"age"`
	// Errors are of the children that are not there, by their place in the request.
	Errors map[int]*Error `json:"errors,omitempty"`
}

// Started tells when the guest's time counter was zero, in ns since 1970.
type Started struct {
	Zero int64 `json:"zero"`
}

// Cut asks for a machine to be made a source, and how the machine goes on.
type Cut struct {
	VM     uint64 `json:"vm"`
	Source uint64 `json:"source"`
	Live   bool   `json:"live"` // it runs on; otherwise it must be paused, and stays so
}

// Fetched tells how many pages were written; the rest of the numbers are holes.
type Fetched struct {
	Limit  page.Number `json:"limit"`
	Stored int         `json:"stored"`
}

// Pin has a machine be unpacked and stay so, or not any more.
type Pin struct {
	VM  uint64 `json:"vm"`
	Pin bool   `json:"pin"`
}

// Note is what a later daemon is to be told by the cell of a machine or a source.
type Note struct {
	VM     uint64          `json:"vm,omitempty"`
	Source uint64          `json:"source,omitempty"`
	Note   json.RawMessage `json:"note"`
}

// Stats asks for figures of some machines, or of all.
type Stats struct {
	VMs []uint64 `json:"vms,omitempty"`
}

// Stat is figures of a machine.
type Stat struct {
	ID           uint64 `json:"id"`
	PrivateBytes int64  `json:"private_bytes"`
	MemoryBytes  int64  `json:"memory_bytes"` // of these, RAM
	CodeBytes    int64  `json:"code_bytes"`   // besides, to execute its own code
	Resident     int    `json:"resident"`     // pages
	Instructions uint64 `json:"instructions"`
	Translated   uint64 `json:"translated"`
	BusyNS       int64  `json:"busy_ns"`  // processor time
	SleepNS      int64  `json:"sleep_ns"` // see engine.VM
}

// VM is a machine of a cell.
type VM struct {
	ID     uint64          `json:"id"`
	Source uint64          `json:"source"`           // 0: it was booted
	Common int             `json:"common,omitempty"` // which of State.Common it has, from 1 on; 0: none
	Note   json.RawMessage `json:"note,omitempty"`
	Zero   int64           `json:"zero,omitempty"` // see Started; 0: it has never run
	Age    int64           `json:"age,omitempty"`  // see Born, of one that has never run
	Ended  *Ended          `json:"ended,omitempty"`
}

// Ended tells how a machine has ended.
type Ended struct {
	ID   uint64 `json:"id"`
	Exit int    `json:"exit"`
	Err  *Error `json:"err,omitempty"`
}

// Code is what kind of error the other side has met.
type Code string

// Codes that somebody asks for; all others are only text.
const (
	CodeEnded   Code = "ended"    // machine.ErrEnded
	CodeQuota   Code = "quota"    // page.ErrQuota
	CodeNoQuota Code = "no-quota" // engine.ErrNoQuota
	CodeNoSpace Code = "no-space" // ENOSPC
	CodeRefused Code = "refused"  // vsock.ErrRefused
	CodeReset   Code = "reset"    // vsock.ErrReset
	CodeNoLayer Code = "no-layer" // ErrNoLayer
	CodeOther   Code = ""
)

// Error is an error of the other side.
type Error struct {
	Code Code   `json:"code,omitempty"`
	Text string `json:"text"`
}

func (e *Error) Error() string { return e.Text }

// Is reports whether the error was target on the other side.
func (e *Error) Is(target error) bool {
	is, ok := known[e.Code]
	return ok && is == target
}

// Encode returns the error as the payload of a frame, shortened if need be.
func (e *Error) Encode() []byte {
	short := *e
	short.Text = short.Text[:min(len(short.Text), 4<<10)]
	b, err := json.Marshal(&short)
	if err != nil {
		return nil
	}
	return b
}

func parseError(b []byte) error {
	e := new(Error)
	if err := json.Unmarshal(b, e); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return e
}

// Time returns the instant of ns since 1970, the zero time for 0.
func Time(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}
