package agent

import (
	"context"
	"fmt"
	"io"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// Limits of what List takes from a guest.
const (
	maxEntries     = 1 << 20   // each costs about 300 bytes
	maxEntriesSize = 512 << 20 // bytes of JSON
)

// File is a file in the guest that is being read. Close it.
type File struct {
	Info wire.FileInfo
	call *call
	rest []byte
	err  error
}

// Open starts to read a regular file. It streams: the guest sends on when Read has taken what came.
func (c *Client) Open(ctx context.Context, req wire.ReadRequest) (*File, error) {
	call, err := c.open(ctx, wire.OpRead, req)
	if err != nil {
		return nil, err
	}
	info, err := decode[wire.FileInfo](call.reply)
	if err != nil {
		call.close()
		return nil, err
	}
	return &File{Info: info, call: call}, nil
}

// Read implements io.Reader. Only a complete file ends with io.EOF.
func (f *File) Read(b []byte) (int, error) {
	for len(f.rest) == 0 && f.err == nil {
		kind, payload, err := f.call.next()
		switch {
		case err != nil:
			f.err = err
		case kind == wire.TypeData:
			f.rest = payload
		case kind == wire.TypeEnd:
			f.err = io.EOF
		default:
			f.err = f.call.unexpected(kind)
		}
	}
	if len(f.rest) == 0 {
		return 0, f.err
	}
	n := copy(b, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}

// Close ends reading.
func (f *File) Close() error {
	f.call.close()
	return nil
}

// WriteFile replaces a file in the guest by what data has, in one step. When it fails, the old file is unchanged.
func (c *Client) WriteFile(ctx context.Context, req wire.WriteRequest, data io.Reader) (wire.FileInfo, error) {
	call, err := c.open(ctx, wire.OpWrite, req)
	if err != nil {
		return wire.FileInfo{}, err
	}
	defer call.close()
	answer := make(chan error, 1)
	var info wire.FileInfo
	go func() { // the guest may refuse before everything is sent
		err := call.readReply()
		if err == nil {
			info, err = decode[wire.FileInfo](call.reply)
		}
		answer <- err
	}()
	if err := sendData(call, data, answer); err != nil {
		return wire.FileInfo{}, err
	}
	if err := <-answer; err != nil {
		return wire.FileInfo{}, err
	}
	return info, nil
}

// sendData sends data and the end mark, unless the answer comes first: then it is an error.
func sendData(call *call, data io.Reader, answer chan error) error {
	buf := wire.NewBuffer(wire.MaxData)
	for {
		n, err := data.Read(buf[wire.HeaderSize:])
		var sent error
		if n > 0 {
			sent = call.out.Filled(wire.TypeData, buf[:wire.HeaderSize+n])
		}
		if err == io.EOF && sent == nil {
			sent = call.out.Frame(wire.TypeEnd, nil)
		}
		if sent != nil {
			if refused := <-answer; refused != nil { // the reason, or that the connection broke
				return refused
			}
			return lost(call.ctx, sent)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the data to write: %w", err)
		}
		select {
		case refused := <-answer:
			if refused == nil {
				refused = call.unexpected(wire.TypeOK)
			}
			return refused
		default:
		}
	}
}

// List returns the entries of a directory, and with a depth those of directories below; a directory comes before what is
// in it, otherwise there is no order.
func (c *Client) List(ctx context.Context, req wire.ListRequest) ([]wire.FileInfo, error) {
	call, err := c.open(ctx, wire.OpList, req)
	if err != nil {
		return nil, err
	}
	defer call.close()
	return collect[wire.FileInfo](call, wire.TypeEntries, maxEntries, maxEntriesSize)
}

// Stat describes a file.
func (c *Client) Stat(ctx context.Context, req wire.StatRequest) (wire.FileInfo, error) {
	return request[wire.FileInfo](ctx, c, wire.OpStat, req)
}

// Mkdir makes a directory.
func (c *Client) Mkdir(ctx context.Context, req wire.MkdirRequest) (wire.MkdirReply, error) {
	return request[wire.MkdirReply](ctx, c, wire.OpMkdir, req)
}

// Compose makes one file of several, in one step, and removes those. When it fails, everything is as it was.
func (c *Client) Compose(ctx context.Context, req wire.ComposeRequest) (wire.FileInfo, error) {
	return request[wire.FileInfo](ctx, c, wire.OpCompose, req)
}

// Rename moves a file within one file system.
func (c *Client) Rename(ctx context.Context, req wire.RenameRequest) error {
	return c.order(ctx, wire.OpRename, req)
}

// Remove removes a file or directory.
func (c *Client) Remove(ctx context.Context, req wire.RemoveRequest) error {
	return c.order(ctx, wire.OpRemove, req)
}
