package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
)

// Version is the protocol version that this package speaks. MinVersion is the oldest that a server still accepts.
const (
	Version    = 1
	MinVersion = 1
)

// Vsock ports inside the guest.
const (
	AgentPort   uint32 = 1024 // the agent
	RuntimePort uint32 = 1025 // the first warm runtime, when the start request names no port
)

// Sizes in bytes.
const (
	HeaderSize  = 5
	MaxFrame    = 16 << 20  // the largest payload
	MaxData     = 64 << 10  // the largest payload that senders put into one data frame
	StdinWindow = 256 << 10 // stdin that may be under way without having been acknowledged by a Credit frame

	firstRead = 64 << 10 // a larger payload is read in growing steps
)

// Type tells what a frame's payload is.
type Type uint8

// Frame types. The numbers are part of the protocol; gaps leave room for related types.
const (
	TypeRequest Type = 1 // client: opens an operation, JSON Request
	TypeRefresh Type = 2 // client: opens a refresh, binary Refresh
	TypeOK      Type = 3 // server: accepted, JSON reply of the operation or empty
	TypeError   Type = 4 // server: JSON Error; ends the operation
	TypeRelease Type = 5 // client: ends the standstill of a branch

	TypeStdin    Type = 16 // client: bytes for standard input
	TypeStdinEnd Type = 17 // client: end of standard input
	TypeStdout   Type = 18 // server: bytes of standard output
	TypeStderr   Type = 19 // server: bytes of standard error
	TypeSignal   Type = 20 // client: JSON SignalRequest
	TypeExit     Type = 21 // server: JSON Exit; ends an exec or an attachment
	TypeCredit   Type = 22 // server: u32, bytes of standard input taken off the window

	TypeTerminal  Type = 23 // server: bytes that a process wrote to its terminal
	TypeProcesses Type = 24 // server: JSON array of ProcessInfo

	TypeData    Type = 32 // either: bytes of a file
	TypeEnd     Type = 33 // either: the stream of data or entries is complete
	TypeEntries Type = 34 // server: JSON array of FileInfo
	TypeChanges Type = 35 // server: JSON array of Change

	TypeEval         Type = 48 // client, on a runtime's port: JSON EvalRequest
	TypeResult       Type = 49 // runtime: JSON EvalResult
	TypeEvalCompiled Type = 53 // client, on a runtime's port: binary CompiledEval
)

// ErrFrameTooLarge means that the peer announced a payload above MaxFrame. The connection cannot be used any more.
var ErrFrameTooLarge = errors.New("frame is larger than the protocol allows")

// Reader reads frames from a connection.
type Reader struct {
	r      io.Reader
	header [HeaderSize]byte
	buf    []byte
}

// NewReader returns a Reader on r. It reads no further than the frame that was asked for.
func NewReader(r io.Reader) *Reader { return &Reader{r: r} }

// Reset makes the reader read from another connection. Its buffer is kept.
func (r *Reader) Reset(from io.Reader) { r.r = from }

// Next returns the next frame. The payload is valid until the next call. It returns io.EOF at the end of the stream
// between two frames, io.ErrUnexpectedEOF within a frame, and ErrFrameTooLarge for a length above MaxFrame.
func (r *Reader) Next() (Type, []byte, error) { return r.NextOnce(nil) }

// NextOnce is Next for a frame that may have to wait: with its header read, ready is asked, and the payload of so many bytes
// stays with the peer until it returns. An error from it is returned as it is.
func (r *Reader) NextOnce(ready func(size int) error) (Type, []byte, error) {
	if _, err := io.ReadFull(r.r, r.header[:]); err != nil {
		return 0, nil, err
	}
	size := binary.LittleEndian.Uint32(r.header[:])
	kind := Type(r.header[4])
	if size > MaxFrame {
		return 0, nil, fmt.Errorf("reading frame of type %d with %d bytes: %w", kind, size, ErrFrameTooLarge)
	}
	if ready != nil {
		if err := ready(int(size)); err != nil {
			return 0, nil, err
		}
	}
	payload, err := r.payload(int(size))
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return kind, payload, err
}

// payload reads n bytes. Memory at most doubles beyond what has really arrived.
func (r *Reader) payload(n int) ([]byte, error) {
	r.buf = r.buf[:0]
	for step := firstRead; len(r.buf) < n; step *= 2 {
		have := len(r.buf)
		end := min(n, have+step)
		r.buf = slices.Grow(r.buf, end-have)[:end]
		if _, err := io.ReadFull(r.r, r.buf[have:]); err != nil {
			return nil, err
		}
	}
	payload := r.buf
	if cap(r.buf) > 4*firstRead {
		r.buf = nil // do not keep the memory of one large frame for the life of the connection
	}
	return payload, nil
}

// WholeFrame takes b apart if it is one frame, no less and no more. The payload is part of b.
func WholeFrame(b []byte) (kind Type, payload []byte, ok bool) {
	if len(b) < HeaderSize || uint64(binary.LittleEndian.Uint32(b)) != uint64(len(b)-HeaderSize) {
		return 0, nil, false
	}
	return Type(b[4]), b[HeaderSize:], true
}

// Writer writes frames to a connection, each with one Write call, but for what Filled says. It may be used by several
// goroutines.
type Writer struct {
	mu  sync.Mutex // serialises frames; guards buf
	w   io.Writer
	buf []byte
}

// NewWriter returns a Writer on w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Reset makes the writer write to another connection. Its buffer is kept.
func (w *Writer) Reset(to io.Writer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.w = to
}

// Frame writes one frame. It blocks while the transport does, which is the protocol's flow control.
func (w *Writer) Frame(kind Type, payload []byte) error {
	if len(payload) > MaxFrame {
		return fmt.Errorf("writing frame of type %d with %d bytes: %w", kind, len(payload), ErrFrameTooLarge)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = AppendFrame(w.buf[:0], kind, payload)
	_, err := w.w.Write(w.buf)
	if cap(w.buf) > 4*firstRead {
		w.buf = nil
	}
	return err
}

// NewBuffer returns a buffer for Filled with room for a header and n bytes of payload, which begins at a multiple of 8 bytes.
func NewBuffer(n int) []byte {
	const lead = 8 - HeaderSize%8
	return make([]byte, lead+HeaderSize+n)[lead:]
}

// apart is from which size on a payload is written apart from its header.
const apart = 16 << 10

// Filled writes the frame whose payload already lies in b[HeaderSize:]; it saves the copy that Frame makes. A large payload is
// written with a Write call of its own: it gets packets of its own, and from a NewBuffer a kernel on riscv64 copies it in a
// third of the time, since pages, buffer and packets are aligned alike.
func (w *Writer) Filled(kind Type, b []byte) error {
	if len(b) < HeaderSize || len(b)-HeaderSize > MaxFrame {
		return fmt.Errorf("writing frame of type %d from a buffer of %d bytes: %w", kind, len(b), ErrFrameTooLarge)
	}
	putHeader(b, kind, len(b)-HeaderSize)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(b)-HeaderSize >= apart {
		if _, err := w.w.Write(b[:HeaderSize]); err != nil {
			return err
		}
		b = b[HeaderSize:]
	}
	_, err := w.w.Write(b)
	return err
}

// JSON writes one frame with v as its payload.
func (w *Writer) JSON(kind Type, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding frame of type %d: %w", kind, err)
	}
	return w.Frame(kind, payload)
}

// AppendFrame appends a whole frame to b. The payload must not be larger than MaxFrame.
func AppendFrame(b []byte, kind Type, payload []byte) []byte {
	start := len(b)
	b = append(b, make([]byte, HeaderSize)...)
	putHeader(b[start:], kind, len(payload))
	return append(b, payload...)
}

func putHeader(b []byte, kind Type, size int) {
	binary.LittleEndian.PutUint32(b, uint32(size))
	b[4] = byte(kind)
}
