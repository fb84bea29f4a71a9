package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Version is that of everything in this package. A daemon and a cell that differ in
// it do not talk.
const Version = 4

// Bounds of a message.
const (
	maxHeader = 16 << 20
	maxBlob   = 256 << 20
	MaxFiles  = 8
	prefix    = 12 // bytes: the lengths of header and blob, and the number of files
)

// ErrMalformed reports bytes that no peer of this version sends.
var ErrMalformed = errors.New("malformed message")

// ErrTooLong reports a message that is not sent because no peer would take it.
var ErrTooLong = errors.New("the message is too long")

// Message is what one side tells the other.
type Message struct {
	// ID is that of the request that this is, or answers; 0 for notices and events.
	ID uint64 `json:"id,omitempty"`
	// Op is what is asked for, or what has happened. An answer has none.
	Op   Op              `json:"op,omitempty"`
	Err  *Error          `json:"err,omitempty"`
	Body json.RawMessage `json:"body,omitempty"`

	Blob  []byte     `json:"-"`
	Files []*os.File `json:"-"`
}

// Conn is a control connection. One goroutine may receive; any may send.
type Conn struct {
	unix *net.UnixConn
	out  sender
}

// NewConn returns a control connection over a connection on which the opening has
// been sent and received.
func NewConn(c *net.UnixConn) *Conn { return &Conn{unix: c, out: sender{unix: c}} }

// Close closes the connection, and forgets what was not sent yet. Who receives gets an error.
func (c *Conn) Close() error {
	err := c.unix.Close()
	c.out.close()
	return err
}

// Finish is Close, but has what was sent before given to the socket first if that takes it
// within a time.
func (c *Conn) Finish(within time.Duration) {
	select {
	case <-c.out.idle():
	case <-time.After(within):
	}
	c.Close()
}

// ReadUntil has whoever receives get an error from then on.
func (c *Conn) ReadUntil(t time.Time) error { return c.unix.SetReadDeadline(t) }

// Send sends a message without waiting for the peer: it is sent once those before have been.
// The files stay the caller's; the blob must not change any more. The error wraps ErrTooLong
// or ErrBehind if only this message is not sent; after any other the connection is of no use
// for sending any more.
func (c *Conn) Send(m *Message) error {
	header, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encoding a message: %w", err)
	}
	if len(header) > maxHeader || len(m.Blob) > maxBlob || len(m.Files) > MaxFiles {
		return fmt.Errorf("%w: %d and %d bytes with %d files", ErrTooLong, len(header), len(m.Blob), len(m.Files))
	}
	b := make([]byte, prefix, prefix+len(header))
	binary.LittleEndian.PutUint32(b, uint32(len(header)))
	binary.LittleEndian.PutUint32(b[4:], uint32(len(m.Blob)))
	binary.LittleEndian.PutUint32(b[8:], uint32(len(m.Files)))
	b = append(b, header...)
	most := maxBehind
	if m.Op == OpConsole || m.Op != "" && m.ID != 0 { // nothing depends on it, or who asks hears of it
		most = maxAsked
	}
	if len(m.Files) == 0 {
		return c.out.send(most, piece{b: b}, piece{b: m.Blob})
	}
	// With the prefix alone, which whoever receives reads alone.
	return c.out.send(most, piece{b[:prefix], m.Files}, piece{b: b[prefix:]}, piece{b: m.Blob})
}

// Receive returns the next message, whose files are the caller's. The error wraps
// ErrMalformed if it is the peer's fault; then nothing more can be received.
func (c *Conn) Receive() (*Message, error) {
	var head [prefix]byte
	files, err := c.receivePrefix(head[:])
	m, err := c.receiveRest(head[:], files, err)
	if err != nil {
		closeAll(files)
		return nil, err
	}
	return m, nil
}

func (c *Conn) receiveRest(head []byte, files []*os.File, err error) (*Message, error) {
	if err != nil {
		return nil, err
	}
	header, blob := binary.LittleEndian.Uint32(head), binary.LittleEndian.Uint32(head[4:])
	if announced := binary.LittleEndian.Uint32(head[8:]); header > maxHeader || blob > maxBlob || announced != uint32(len(files)) {
		return nil, fmt.Errorf("%w: %d and %d bytes, %d files of which %d came", ErrMalformed, header, blob, announced, len(files))
	}
	b, err := c.read(int(header))
	if err != nil {
		return nil, err
	}
	m := new(Message)
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if m.Blob, err = c.read(int(blob)); err != nil {
		return nil, err
	}
	m.Files = files
	return m, nil
}

// read reads so many bytes. Memory is taken as they come.
func (c *Conn) read(n int) ([]byte, error) {
	const step = 1 << 20
	b := make([]byte, 0, min(n, step))
	for len(b) < n {
		k := min(n-len(b), step)
		b = append(b, make([]byte, k)...)
		if _, err := io.ReadFull(c.unix, b[len(b)-k:]); err != nil {
			return nil, broken(err)
		}
	}
	return b, nil
}

func broken(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// receivePrefix reads the prefix of a message, and the files that come with it.
func (c *Conn) receivePrefix(b []byte) (files []*os.File, err error) {
	oob := make([]byte, unix.CmsgSpace(4*MaxFiles))
	for read := 0; read < len(b); {
		n, oobn, flags, _, err := c.unix.ReadMsgUnix(b[read:], oob)
		got, parseErr := filesIn(oob[:oobn])
		files = append(files, got...)
		switch {
		case err != nil && read > 0:
			return files, broken(err)
		case err != nil:
			return files, err
		case parseErr != nil:
			return files, fmt.Errorf("%w: %w", ErrMalformed, parseErr)
		case flags&unix.MSG_CTRUNC != 0:
			return files, fmt.Errorf("%w: more files than are allowed", ErrMalformed)
		case n == 0 && read == 0:
			return files, io.EOF
		case n == 0:
			return files, io.ErrUnexpectedEOF
		}
		read += n
	}
	return files, nil
}

// filesIn returns the files of a control message. Go has them closed on exec.
func filesIn(oob []byte) (files []*os.File, err error) {
	messages, err := syscall.ParseSocketControlMessage(oob)
	for _, m := range messages {
		fds, rightsErr := syscall.ParseUnixRights(&m)
		err = errors.Join(err, rightsErr)
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
