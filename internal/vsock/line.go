package vsock

import (
	"cmp"
	"slices"

	virtio "github.com/forkd-dev/forkd/internal/virtio/vsock"
)

// Lines implements virtio/vsock.Host.
func (m *Mux) Lines() (lines []virtio.Line, all bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns {
		if !c.line || !c.rests() || len(lines) == virtio.MaxLines {
			return nil, false
		}
		lines = append(lines, virtio.Line{
			HostPort: c.pair.host, GuestPort: c.pair.guest,
			Sent: c.sent, Received: c.received, Told: c.told,
			BufAlloc: c.peerAlloc,
		})
	}
	// The order of the table is another one each time.
	slices.SortFunc(lines, func(a, b virtio.Line) int { return cmp.Compare(a.HostPort, b.HostPort) })
	return lines, true
}

// rests reports whether nothing is under way on the connection, and both ends may still use it. What a Relay was told of has
// arrived. What the guest's program has left unread may be the end of what it wanted to hear.
func (c *Conn) rests() bool {
	return c.status == established && c.due == 0 && !c.closed && !c.shut && !c.eof && !c.peerDeaf &&
		c.in.Len() == 0 && c.out.Len() == 0 && c.sent == c.peerFwd
}

// Adopt implements virtio/vsock.Host.
func (m *Mux) Adopt(lines []virtio.Line) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range lines {
		p := pair{host: l.HostPort, guest: l.GuestPort}
		if m.conns[p] != nil {
			continue // there cannot be two; who made that up has one
		}
		c := m.add(p, established)
		c.line = true
		c.sent, c.received, c.consumed, c.told = l.Sent, l.Received, l.Received, l.Told
		c.peerAlloc, c.peerFwd = l.BufAlloc, l.Sent
		m.spare = append(m.spare, c)
	}
}

// isSpare reports whether c is a line that nobody has taken yet.
func (m *Mux) isSpare(c *Conn) bool { return slices.Contains(m.spare, c) }

// takeSpare gives a line to a port of the guest, if there is one, to a Receiver.
func (m *Mux) takeSpare(port uint32, to Receiver) *Conn {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, c := range m.spare {
		if c.pair.guest == port && c.rests() {
			m.spare = slices.Delete(m.spare, i, i+1)
			c.to = to
			to.Opened()
			return c
		}
	}
	return nil
}
