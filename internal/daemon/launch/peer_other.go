//go:build !linux

package launch

import "net"

// PeerOf never knows on this system.
func PeerOf(net.Conn) (Peer, bool) { return Peer{}, false }
