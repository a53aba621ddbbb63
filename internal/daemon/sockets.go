package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/coreos/go-systemd/v22/activation"

	"virtlvm/internal/config"
)

// Names of the sockets in the systemd units (FileDescriptorName=).
const (
	nameReadWrite = "rw"
	nameReadOnly  = "ro"
	namePeer      = "peer"
)

// listen takes the sockets from systemd, or makes its own where it was not started by
// systemd. The value is the socket's name.
func listen(cfg *config.Config) (map[net.Listener]string, error) {
	byName, err := activation.ListenersWithNames()
	if err != nil {
		return nil, fmt.Errorf("cannot take the sockets from systemd: %w", err)
	}
	listeners := map[net.Listener]string{}
	for name, ls := range byName {
		if name != nameReadWrite && name != nameReadOnly && name != namePeer {
			return nil, fmt.Errorf("systemd passed a socket named %q; expected FileDescriptorName=%s, %s or %s", name, nameReadWrite, nameReadOnly, namePeer)
		}
		for _, l := range ls {
			if l == nil {
				return nil, fmt.Errorf("systemd passed a descriptor named %q that is no listening socket", name)
			}
			listeners[l] = name
		}
	}
	if len(listeners) > 0 {
		return listeners, nil
	}
	for _, s := range []struct {
		name, file string
		mode       os.FileMode
	}{{nameReadWrite, "virtlvm.sock", 0o660}, {nameReadOnly, "virtlvm-ro.sock", 0o666}, {namePeer, "peer.sock", 0o600}} {
		l, err := listenAt(filepath.Join(cfg.Paths.RunDir, s.file), s.mode, cfg.Paths.SocketGroup)
		if err != nil {
			return nil, err
		}
		listeners[l] = s.name
	}
	return listeners, nil
}

func listenAt(path string, mode os.FileMode, group string) (net.Listener, error) {
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("another virtlvmd serves %s", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot replace the socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot make the socket: %w", err)
	}
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot set the mode of the socket: %w", err), l.Close())
	}
	if g, err := user.LookupGroup(group); err == nil && os.Geteuid() == 0 {
		if gid, err := strconv.Atoi(g.Gid); err == nil {
			if err := os.Chown(path, -1, gid); err != nil {
				return nil, errors.Join(fmt.Errorf("cannot give the socket to its group: %w", err), l.Close())
			}
		}
	}
	return l, nil
}
