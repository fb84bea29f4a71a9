// Command qemu compares the speed of forkd's soft engine with QEMU's emulator,
// side by side: the same stock Debian riscv64 kernel with the same command
// line, the same EROFS root file system, the same init program, one vCPU.
//
//	go run ./bench/qemu [-rounds N | -quick] [-workloads REGEXP] [-json FILE] [-only qemu|forkd]
//
// # Method
//
// An init program (package guest) is compiled for the guest and put into an
// initramfs behind the modules of forkd's own image. It loads the modules,
// mounts the root with a fresh ext4 scratch disk over it, and runs the
// workloads of package suite, each in fresh processes. It says on the virtio
// console when one starts and ends. The host takes the time at which those
// lines arrive; the guest's CLOCK_MONOTONIC is in them too, and a guest whose
// clock disagrees with the host's is reported. In every round each machine
// boots once and runs all workloads, and rounds take turns in who begins. The
// figures are medians over the rounds.
//
// Both machines have virtio-mmio disks, entropy and console. The scratch disk
// ignores flushes in both. What still differs is the machine around the CPU:
// QEMU's "virt" board has firmware (OpenSBI) and a PCI host that the kernel
// probes, forkd's has a vsock device; that concerns the boot. QEMU runs with
// its defaults, translating, as its own process; forkd's machine runs in this
// process.
//
// # Reading it
//
// ratio is QEMU's time divided by forkd's: above 1 forkd is faster. noise is
// how far the rounds of one machine lie apart, as a share of the median, the
// worse of the two; ratios that differ by less mean nothing. On Linux there is
// the CPU time as well, which other processes on the host disturb less, and its
// ratio. Minstr is how many million instructions forkd's guest retired, and
// Minstr/s how many of them per second of CPU time: the count is nearly the
// same in every run, and what QEMU counts too (-icount); the rate is not.
//
// Times include everything: kernel, page faults, disk. Workloads whose output
// differs between the machines or between rounds, or that fail, have an error
// in place of figures, and the exit status is 1.
//
// The host must be idle otherwise, or both suffer, and not equally.
package main
