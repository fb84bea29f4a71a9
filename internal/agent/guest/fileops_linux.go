package guest

import (
	"encoding/json"
	"io"

	"github.com/forkd-dev/forkd/internal/agent/files"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

func (s *session) dispatchFile(r wire.Request) error {
	switch r.Op {
	case wire.OpRead:
		return with(r, s.read)
	case wire.OpWrite:
		return with(r, s.write)
	case wire.OpList:
		return with(r, s.list)
	case wire.OpStat:
		return answer(s, r, func(a wire.StatRequest) (any, error) {
			info, err := s.root.Stat(string(a.Path), !a.NoFollow, a.Attrs)
			return s.named(info), err
		})
	case wire.OpMkdir:
		return answer(s, r, func(a wire.MkdirRequest) (any, error) {
			owner, err := s.owner(a.Owner)
			if err != nil {
				return nil, err
			}
			reply, err := s.root.Mkdir(a, owner)
			reply.Info = s.named(reply.Info)
			return reply, err
		})
	case wire.OpCompose:
		return answer(s, r, func(a wire.ComposeRequest) (any, error) {
			owner, err := s.owner(a.Owner)
			if err != nil {
				return nil, err
			}
			info, err := s.root.Compose(a, owner)
			return s.named(info), err
		})
	case wire.OpWatch:
		return with(r, s.watch)
	case wire.OpRename:
		return answer(s, r, func(a wire.RenameRequest) (any, error) { return nil, s.root.Rename(a) })
	case wire.OpRemove:
		return answer(s, r, func(a wire.RemoveRequest) (any, error) { return nil, s.root.Remove(a) })
	}
	return wire.Errorf(wire.CodeUnknownOp, "op", "operation %q is not known here", r.Op)
}

// owner looks up who a new file is to belong to; nil when the request does not say.
func (s *session) owner(user string) (*files.Owner, error) {
	if user == "" {
		return nil, nil
	}
	u, err := s.accounts.Lookup(user)
	if err != nil {
		err := *wire.AsError(err)
		err.Field = "owner"
		return nil, &err
	}
	return &files.Owner{UID: u.UID, GID: u.GID}, nil
}

// read streams a file: OK with its description, Data frames, End.
func (s *session) read(req wire.ReadRequest) error {
	if req.Offset < 0 || req.Length != nil && *req.Length < 0 {
		return wire.Errorf(wire.CodeBadRequest, "offset", "offset and length must not be negative")
	}
	f, err := s.root.Open(string(req.Path))
	if err != nil {
		return err
	}
	defer f.Close()
	if req.Offset > 0 {
		if _, err := f.Seek(req.Offset, io.SeekStart); err != nil {
			return wire.Errorf(wire.CodeBadRequest, "offset", "file %q cannot be read from offset %d: %v", string(req.Path), req.Offset, err)
		}
	}
	info, err := files.Describe(f, string(req.Path))
	if err != nil {
		return err
	}
	if err := s.out.JSON(wire.TypeOK, s.named(info)); err != nil {
		return nil // the client is gone
	}
	var source io.Reader = f
	if req.Length != nil {
		source = io.LimitReader(f, *req.Length)
	}
	return s.stream(source, string(req.Path))
}

// stream sends what source has as Data frames, then End.
func (s *session) stream(source io.Reader, name string) error {
	buf := wire.NewBuffer(wire.MaxData)
	for {
		n, err := source.Read(buf[wire.HeaderSize:])
		if n > 0 && s.out.Filled(wire.TypeData, buf[:wire.HeaderSize+n]) != nil {
			return nil // the client is gone
		}
		if err == io.EOF {
			_ = s.out.Frame(wire.TypeEnd, nil)
			return nil
		}
		if err != nil {
			return wire.Errorf(wire.CodeInternal, "path", "reading %q: %v", name, err)
		}
	}
}

// write receives a file: OK, then the client's Data frames and End, then OK with the description of the new file. A client
// that leaves before End leaves the old file as it was.
func (s *session) write(req wire.WriteRequest) error {
	owner, err := s.owner(req.Owner)
	if err != nil {
		return err
	}
	file, err := s.root.Replace(req, owner)
	if err != nil {
		return err
	}
	if err := s.out.Frame(wire.TypeOK, nil); err != nil {
		file.Discard()
		return nil
	}
	if err := s.receive(file); err != nil {
		file.Discard()
		s.fail(err)
		s.drain()
		return nil
	}
	info, err := file.Commit()
	if err == nil {
		s.done(s.named(info), nil)
	}
	return err
}

func (s *session) receive(file *files.Replacement) error {
	for {
		kind, payload, err := s.in.Next()
		switch {
		case err != nil:
			return wire.Errorf(wire.CodeBadRequest, "", "the data ended without an end mark: %v", err)
		case kind == wire.TypeEnd:
			return nil
		case kind != wire.TypeData:
			return wire.Errorf(wire.CodeUnknownFrame, "", "frame type %d has no place in a write", kind)
		}
		if _, err := file.Write(payload); err != nil {
			return err
		}
	}
}

// drain reads on after an error until the client has noticed, because closing a connection with unread data would reset it
// and could lose the error that was just sent.
func (s *session) drain() {
	for {
		if kind, _, err := s.in.Next(); err != nil || kind == wire.TypeEnd {
			return
		}
	}
}

// list streams a directory: OK, Entries frames, End.
func (s *session) list(req wire.ListRequest) error {
	answered := false
	naming := s.naming()
	err := s.root.List(req, func(batch []wire.FileInfo) error {
		if !answered {
			answered = true
			if err := s.out.Frame(wire.TypeOK, nil); err != nil {
				return err
			}
		}
		for i := range batch {
			naming.name(&batch[i])
		}
		return sendAll(s.out, wire.TypeEntries, batch)
	})
	if err != nil {
		return err
	}
	if !answered {
		_ = s.out.Frame(wire.TypeOK, nil)
	}
	_ = s.out.Frame(wire.TypeEnd, nil)
	return nil
}

// watch tells of changes in a directory: OK, then Changes frames until the client leaves.
func (s *session) watch(req wire.WatchRequest) error {
	w, err := s.root.Watch(req)
	if err != nil {
		return err
	}
	if err := s.out.Frame(wire.TypeOK, nil); err != nil {
		w.Close()
	}
	gone := s.disconnected()
	go func() {
		<-gone
		w.Close()
	}()
	return w.Run(func(changes []wire.Change) error {
		naming := s.naming()
		for _, c := range changes {
			if c.Entry != nil {
				naming.name(c.Entry)
			}
		}
		return sendAll(s.out, wire.TypeChanges, changes)
	})
}

// frameAim is about how many bytes of JSON go into one frame of a list.
const frameAim = 64 << 10

// sendAll sends a list in as many frames as it takes.
func sendAll[T any](out *wire.Writer, kind wire.Type, items []T) error {
	var batch []json.RawMessage
	size := 0
	for i := range items {
		b, err := json.Marshal(&items[i])
		if err != nil {
			return err
		}
		batch, size = append(batch, b), size+len(b)
		if size < frameAim && i < len(items)-1 {
			continue
		}
		if err := out.JSON(kind, batch); err != nil {
			return err
		}
		batch, size = batch[:0], 0
	}
	return nil
}
