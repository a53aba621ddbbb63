package api

import (
	"fmt"
	"time"
)

// PeerSocketPath is the socket for the relays of other hosts, root's alone. The first
// line on a connection to it is PeerPreamble, the name of the host that calls and a
// newline; HTTP follows.
const PeerSocketPath = "/run/virtlvm/peer.sock"

// PeerPreamble begins the first line on a connection to the peer socket.
const PeerPreamble = "PEER "

// RouteMetrics is where Prometheus' text format is had: on all sockets of this host.
const RouteMetrics = "/metrics" // GET -> text

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

// maxHostName is the longest name of a host, in bytes: a label of DNS, and more than
// sanlock's 48.
const maxHostName = 63

// CheckHostName is nil for a name that a host may have: sanlock's names of hosts and those
// of DNS are of this kind, and none is an option of ssh or two words in a shell.
func CheckHostName(name string) error {
	if len(name) > maxHostName || !isName(name) {
		return fmt.Errorf("%q is not a name of a host", name)
	}
	return nil
}

// isName reports whether s is of letters, digits and "._-", and begins with one of the
// first two. By hand: the hook, whose start libvirt waits for, has this package too.
func isName(s string) bool {
	for i := range len(s) {
		c := s[i]
		plain := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !plain && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return s != ""
}

// Compatible reports whether this program understands one that speaks the given version
// of the protocol.
func Compatible(major, minor int) bool {
	return major == ProtocolMajor && minor >= ProtocolMinor-1 && minor <= ProtocolMinor+1
}

// RouteFenced declares a member of a VG without lvmlockd off, for this host.
const RouteFenced = "/v1/hosts/fenced" // POST FencedRequest -> Command

// FencedRequest says that a host is off: that it does not answer keeps nobody on the host
// that is asked from using the volumes of VGs without lvmlockd.
type FencedRequest struct {
	Host     string `json:"host"`
	Withdraw bool   `json:"withdraw,omitempty"`
}
