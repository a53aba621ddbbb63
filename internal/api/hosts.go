package api

import (
	"fmt"
	"regexp"
	"sync"
	"time"
)

// PeerSocketPath is the socket for the relays of other hosts, root's alone. The first
// line on a connection to it is PeerPreamble, the name of the host that calls and a
// newline; HTTP follows.
const PeerSocketPath = "/run/virtlvm/peer.sock"

// PeerPreamble begins the first line on a connection to the peer socket.
const PeerPreamble = "PEER "

// RoutePeers lists the other hosts that this daemon knows.
const RoutePeers = "/v1/peers" // GET -> Peers

// Peers answers RoutePeers.
type Peers struct {
	Host   string `json:"host"`    // this host's name among its peers
	SSHDir string `json:"ssh_dir"` // folder of the key and the known hosts, see virtlvm.toml(5)
	// ConnectTimeout and CallTimeout are the daemon's, in nanoseconds.
	ConnectTimeout time.Duration `json:"connect_timeout"`
	CallTimeout    time.Duration `json:"call_timeout"`
	Peers          []Peer        `json:"peers"`
	// Problem says why the hosts of the lockspace could not be listed, else empty.
	Problem string `json:"problem,omitempty"`
}

// Peer is another host.
type Peer struct {
	Name string `json:"name"`
	URL  string `json:"url"`  // see ParseTarget
	From string `json:"from"` // how it is known: "config" or "sanlock"
}

// hostName is what a host may be called: sanlock's names of hosts and those of DNS are
// of this kind, and none is an option of ssh or two words in a shell. It is made when it is
// first needed: the hook, whose start libvirt waits for, has this package and needs it never.
var hostName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`) })

// CheckHostName is nil for a name that a host may have.
func CheckHostName(name string) error {
	if !hostName().MatchString(name) {
		return fmt.Errorf("%q is not a name of a host", name)
	}
	return nil
}

// Compatible reports whether this program understands one that speaks the given version
// of the protocol.
func Compatible(major, minor int) bool {
	return major == ProtocolMajor && minor >= ProtocolMinor-1 && minor <= ProtocolMinor+1
}
