package guest

import (
	"strconv"
	"sync"

	"github.com/forkd-dev/forkd/internal/agent/proc"
	"github.com/forkd-dev/forkd/internal/agent/wire"
)

// nameCache keeps the names of users and groups for as long as the account files are the same.
type nameCache struct {
	mu    sync.Mutex // guards what follows
	files [2]wire.FileInfo
	names proc.Names
}

// naming gives names to owners. It is for one operation, and looks at the account files once, if at all.
type naming struct {
	*Server
	loaded bool
	names  proc.Names
}

func (s *Server) naming() *naming { return &naming{Server: s} }

// named is naming for one file.
func (s *Server) named(info wire.FileInfo) wire.FileInfo {
	s.naming().name(&info)
	return info
}

func (n *naming) name(info *wire.FileInfo) {
	info.Owner = n.find(info.UID, func() map[uint32]string { return n.names.Users })
	info.Group = n.find(info.GID, func() map[uint32]string { return n.names.Groups })
}

// find returns a name or, if there is none, the number. What has number 0 is called root everywhere.
func (n *naming) find(id uint32, names func() map[uint32]string) string {
	if id == 0 {
		return "root"
	}
	if !n.loaded {
		n.loaded = true
		n.names = n.loadNames()
	}
	if name, ok := names()[id]; ok {
		return name
	}
	return strconv.FormatUint(uint64(id), 10)
}

// loadNames returns the names that are in the account files now.
func (s *Server) loadNames() proc.Names {
	s.names.mu.Lock()
	defer s.names.mu.Unlock()
	fresh := true
	for i, path := range proc.AccountFiles {
		info, _ := s.root.Stat(path, true, false) // one that is not there has no names
		was := &s.names.files[i]
		if info.MtimeNS != was.MtimeNS || info.Size != was.Size {
			fresh = false
		}
		*was = info
	}
	if !fresh || s.names.names.Users == nil {
		s.names.names = s.accounts.Names()
	}
	return s.names.names
}
