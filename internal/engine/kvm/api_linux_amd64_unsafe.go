//go:build linux && amd64

//lint:file-ignore U1000 fields are the kernel's, whether they are used here or not

package kvm

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// request is the number of a KVM ioctl (the kernel's Documentation/virt/kvm/api).
type request uintptr

const (
	getAPIVersion   request = 0xae00
	createVM        request = 0xae01
	getMSRIndexList request = 0xc004ae02
	checkExtension  request = 0xae03
	getVCPUMmapSize request = 0xae04
	getCPUID        request = 0xc008ae05

	createVCPU      request = 0xae41
	setMemoryRegion request = 0x4020ae46
	setTSSAddr      request = 0xae47
	setIdentityMap  request = 0x4008ae48
	createIRQChip   request = 0xae60
	irqLine         request = 0x4008ae61
	getIRQChip      request = 0xc208ae62
	setIRQChip      request = 0x8208ae63
	createPIT       request = 0x4040ae77
	setClock        request = 0x4030ae7b
	getClock        request = 0x8030ae7c
	getPIT          request = 0x8070ae9f
	setPIT          request = 0x4070aea0

	run           request = 0xae80
	getRegs       request = 0x8090ae81
	setRegs       request = 0x4090ae82
	getSRegs      request = 0x8138ae83
	setSRegs      request = 0x4138ae84
	getMSRs       request = 0xc008ae88
	setMSRs       request = 0x4008ae89
	getLAPIC      request = 0x8400ae8e
	setLAPIC      request = 0x4400ae8f
	setCPUID      request = 0x4008ae90
	getMPState    request = 0x8004ae98
	setMPState    request = 0x4004ae99
	getVCPUEvents request = 0x8040ae9f
	setVCPUEvents request = 0x4040aea0
	getDebugRegs  request = 0x8080aea1
	setDebugRegs  request = 0x4080aea2
	getTSCKHz     request = 0xaea3
	getXSave      request = 0x9000aea4
	setXSave      request = 0x5000aea5
	getXCRs       request = 0x8188aea6
	setXCRs       request = 0x4188aea7
)

// Capabilities that checkExtension is asked about.
const (
	capIRQChip       = 0
	capUserMemory    = 3
	capPIT           = 33
	capMPState       = 14
	capVCPUEvents    = 41
	capXSave         = 55
	capXCRs          = 56
	capAdjustClock   = 39
	capTSCDeadline   = 72
	capImmediateExit = 136
)

// Exit reasons.
const (
	exitIO            = 2
	exitMMIO          = 6
	exitShutdown      = 8
	exitFailEntry     = 9
	exitInterrupted   = 10
	exitInternalError = 17
	exitSystemEvent   = 24
)

// The sizes of these structures are part of the requests above; a test compares.
type (
	regs struct {
		rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp uint64
		r                                      [8]uint64 // r8 to r15
		rip, rflags                            uint64
	}
	segment struct {
		base                            uint64
		limit                           uint32
		selector                        uint16
		kind, present, dpl, db, s, l, g uint8
		avl, unusable, _                uint8
	}
	descriptorTable struct {
		base  uint64
		limit uint16
		_     [3]uint16
	}
	sregs struct {
		cs, ds, es, fs, gs, ss, tr, ldt         segment
		gdt, idt                                descriptorTable
		cr0, cr2, cr3, cr4, cr8, efer, apicBase uint64
		interrupts                              [4]uint64
	}
	memoryRegion struct {
		slot, flags    uint32
		gpa, size, hva uint64
	}
	clockData struct {
		clock, flags uint64
		_            [32]byte
	}
	msr struct {
		index, _ uint32
		data     uint64
	}
	cpuidEntry struct {
		function, index, flags, eax, ebx, ecx, edx uint32
		_                                          [3]uint32
	}
)

const (
	maxCPUID = 256
	maxMSRs  = 512
)

type (
	cpuidTable struct {
		n, _    uint32
		entries [maxCPUID]cpuidEntry
	}
	msrTable struct {
		n, _    uint32
		entries [maxMSRs]msr
	}
	msrIndexes struct {
		n       uint32
		indexes [maxMSRs]uint32
	}
	irqLevel struct{ irq, level uint32 }
	irqChip  struct {
		chip, _ uint32
		state   [512]byte
	}
)

// call makes a request with a number as its argument.
func call(fd int, r request, arg uintptr) (int, error) {
	for {
		n, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(r), arg)
		if done, err := finished(r, e); done {
			return int(n), err
		}
	}
}

// finished tells whether a request has been made, and its error: one that a signal has
// interrupted is made again, but not that which runs a vCPU.
func finished(r request, e unix.Errno) (bool, error) {
	switch {
	case e == 0:
		return true, nil
	case e == unix.EINTR && r != run:
		return false, nil
	}
	return true, e
}

// count makes a request with a structure, which the kernel may change, and returns the
// number that it returns.
func count[T any](fd int, r request, arg *T) (int, error) {
	for {
		// The structure may be on the stack, so its address must be taken right here.
		n, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(r), uintptr(unsafe.Pointer(arg)))
		switch done, err := finished(r, e); {
		case done && err != nil:
			return 0, fmt.Errorf("KVM request %#x: %w", uintptr(r), err)
		case done:
			return int(n), nil
		}
	}
}

// give is count for requests that return nothing else.
func give[T any](fd int, r request, arg *T) error {
	_, err := count(fd, r, arg)
	return err
}

// bytesOf returns the memory of a structure without pointers.
func bytesOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// hostAddress returns where guest memory lies.
func hostAddress(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// shared is the page that a vCPU shares with the kernel (struct kvm_run).
type shared struct{ mem []byte }

const (
	sharedImmediateExit = 1
	sharedReason        = 8
	sharedExit          = 32 // what belongs to the reason
	sharedSize          = 64 // of what is looked at besides data of ports
)

// setImmediateExit has the next run request return at once, or not.
func (s shared) setImmediateExit(v uint32) {
	// Another thread sets it while the vCPU executes. The bytes beside it are the
	// other requests to the kernel, none of which is made.
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&s.mem[0])), v<<(8*sharedImmediateExit))
}
