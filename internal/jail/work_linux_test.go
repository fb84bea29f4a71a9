package jail

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// work does what the programs in jails do all day: goroutines, threads, timers, garbage,
// preemption, panics.
func work(*net.UnixConn, order) (string, error) {
	var group sync.WaitGroup
	sums := make(chan int, 200)
	for i := range 200 {
		group.Go(func() {
			if i%10 == 0 {
				runtime.LockOSThread() // its thread ends with it, and another begins
			}
			time.Sleep(time.Duration(i%7) * time.Millisecond)
			var kept [][]byte
			for range 50 {
				kept = append(kept, make([]byte, 4096+i))
			}
			sums <- len(kept)
		})
	}
	stop := make(chan bool)
	go func() {
		for n := 0; ; n++ { // no call in it: has to be interrupted for the collection
			if n&(1<<20-1) == 0 {
				select {
				case <-stop:
					return
				default:
				}
			}
		}
	}()
	runtime.GC()
	runtime.GC()
	group.Wait()
	close(stop)
	total := 0
	for range 200 {
		total += <-sums
	}
	if got := recovered(); got != "runtime error: invalid memory address or nil pointer dereference" {
		return got, errWrong
	}
	return fmt.Sprint(total), nil
}

// recovered has the processor report an address, which becomes a signal and then a panic.
func recovered() (text string) {
	defer func() { text = fmt.Sprint(recover()) }()
	var p *int
	return fmt.Sprint(*p)
}

// receive takes a file over the connection for files, reads what is in it, writes to it,
// maps it, and sends a file of its own back.
func receive(conn *net.UnixConn, _ order) (string, error) {
	f, err := receiveFile(conn)
	if err != nil {
		return "receiving", err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		return "reading", err
	}
	for what, do := range map[string]func() error{
		"growing":   func() error { return unix.Fallocate(int(f.Fd()), 0, 0, 8192) },
		"writing":   func() error { _, err := f.WriteAt([]byte("from inside"), 4096); return err },
		"syncing":   f.Sync,
		"examining": func() error { _, err := f.Stat(); return err },
	} {
		if err := do(); err != nil {
			return what, err
		}
	}
	m, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return "mapping", err
	}
	copy(m[100:], "mapped")
	fd, err := unix.MemfdCreate("answer", unix.MFD_CLOEXEC)
	if err != nil {
		return "making a memory file", err
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, text); err != nil {
		return "writing to a memory file", err
	}
	if _, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil); err != nil {
		return "sending", err
	}
	return string(text), nil
}

// serve takes a socket that listens over the connection for files, and answers who comes
// there.
func serve(conn *net.UnixConn, _ order) (string, error) {
	f, err := receiveFile(conn)
	if err != nil {
		return "receiving", err
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return "listening", err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	defer l.Close()
	c, err := l.Accept()
	if err != nil {
		return "accepting", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return "bounding it", err
	}
	heard, err := io.ReadAll(c)
	if err != nil {
		return "reading", err
	}
	_, err = fmt.Fprintf(c, "%s, and back", heard)
	return string(heard), err
}

// receiveFile takes a descriptor that comes with one byte.
func receiveFile(conn *net.UnixConn) (*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return nil, err
	}
	if len(messages) != 1 {
		return nil, errWrong
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "received"), nil
}
