package agent

import (
	"context"
	"fmt"
	"io"

	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// maxEntries is how many entries List takes from a guest, of which each costs about 200 bytes.
const maxEntries = 1 << 20

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
	buf := make([]byte, wire.HeaderSize+wire.MaxData)
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

// List returns the entries of a directory, in no order.
func (c *Client) List(ctx context.Context, path wire.Name) ([]wire.FileInfo, error) {
	call, err := c.open(ctx, wire.OpList, wire.PathRequest{Path: path})
	if err != nil {
		return nil, err
	}
	defer call.close()
	entries := []wire.FileInfo{}
	for {
		kind, payload, err := call.next()
		switch {
		case err != nil:
			return nil, err
		case kind == wire.TypeEnd:
			return entries, nil
		case kind != wire.TypeEntries:
			return nil, call.unexpected(kind)
		}
		batch, err := decode[[]wire.FileInfo](payload)
		if err != nil {
			return nil, err
		}
		if entries = append(entries, batch...); len(entries) > maxEntries {
			return nil, wire.Errorf(wire.CodeTooLong, "path", "directory %q has more than %d entries", string(path), maxEntries)
		}
	}
}

// Stat describes a file.
func (c *Client) Stat(ctx context.Context, req wire.StatRequest) (wire.FileInfo, error) {
	return request[wire.FileInfo](ctx, c, wire.OpStat, req)
}

// Mkdir makes a directory.
func (c *Client) Mkdir(ctx context.Context, req wire.MkdirRequest) error {
	return c.order(ctx, wire.OpMkdir, req)
}

// Rename moves a file within one file system.
func (c *Client) Rename(ctx context.Context, req wire.RenameRequest) error {
	return c.order(ctx, wire.OpRename, req)
}

// Remove removes a file or directory.
func (c *Client) Remove(ctx context.Context, req wire.RemoveRequest) error {
	return c.order(ctx, wire.OpRemove, req)
}
