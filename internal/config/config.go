// Package config reads /etc/virtlvm/virtlvm.toml. Every key is optional; an unknown key
// or a bad value is refused with its file and line. Documented in virtlvm.toml(5).
package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"
)

// DefaultPath is where the daemon and `virtlvm config check` look.
const DefaultPath = "/etc/virtlvm/virtlvm.toml"

// maxSize is far above any sane configuration; it keeps a wrong path (a disk image, a
// device) from being read into memory.
const maxSize = 1 << 20

// Config is the whole configuration, complete with defaults.
type Config struct {
	Scope     Scope
	Hook      Hook
	LVM       LVM
	Boot      Boot
	Reconcile Reconcile
	Locks     Locks
	Journal   Journal
	Log       Log
	Peers     Peers
	Migration Migration
	Volumes   Volumes
	Metrics   Metrics
	Paths     Paths
	VGs       map[string]VG // sections [vg.NAME], by NAME
}

// VG is what is said of one volume group.
type VG struct {
	// UnsafeClaims manages a volume group without lvmlockd: its Members claim volumes among
	// themselves; see docs/locks.md.
	UnsafeClaims bool
	Members      []string // all hosts that see it, sorted, by their names
}

// Claims are the members of each volume group with UnsafeClaims.
func (c *Config) Claims() map[string][]string {
	all := map[string][]string{}
	for name, vg := range c.VGs {
		if vg.UnsafeClaims {
			all[name] = vg.Members
		}
	}
	return all
}

// Scope says which volume groups are managed. The caller adds LVM's own condition: only
// a shared volume group (lock type sanlock) can be in scope, or one with VG.UnsafeClaims.
type Scope struct {
	VolumeGroups []string // names; empty: every shared volume group
	Exclude      []string // names, never managed
}

// Includes reports whether the configuration lets virtlvm manage the volume group.
func (s Scope) Includes(vg string) bool {
	if slices.Contains(s.Exclude, vg) {
		return false
	}
	return len(s.VolumeGroups) == 0 || slices.Contains(s.VolumeGroups, vg)
}

// Hook bounds the hook.
type Hook struct {
	// Deadline bounds one hook call from start to exit. The daemon passes it on to the
	// hook in hook.json (api.HookSettings).
	Deadline time.Duration
}

// LVM bounds the LVM commands.
type LVM struct {
	Timeout        time.Duration // of one LVM command
	LockstartRetry time.Duration // pause between tries to start a lockspace
}

// Boot says how patient a start is while the host comes up.
type Boot struct {
	Wait time.Duration // how long `prepare` waits for a lockspace; 0: not at all
}

// Reconcile paces the ensure loop.
type Reconcile struct {
	Interval time.Duration
}

// Locks says what becomes of locks.
type Locks struct {
	// Retain keeps a guest's exclusive volumes so after it has ended, for a quick restart,
	// until another host asks for them.
	Retain bool
}

// Volumes says what is done with volumes.
type Volumes struct {
	ZeroOnDelete []string // names of VGs, or "*" for all: a volume is zeroed before it is removed
}

// allVGs stands for every volume group.
const allVGs = "*"

// ZeroFirst reports whether a volume of a volume group is zeroed before it is removed.
func (v Volumes) ZeroFirst(vg string) bool {
	return slices.Contains(v.ZeroOnDelete, vg) || slices.Contains(v.ZeroOnDelete, allVGs)
}

// Metrics says where metrics go besides the socket.
type Metrics struct {
	Textfile string // for node_exporter's textfile collector; "": none
}

// Journal bounds the database.
type Journal struct {
	Keep time.Duration // age at which finished rows go
}

// Log says how much is logged.
type Log struct {
	Level slog.Level
}

// Peers says which other hosts there are and how they are reached.
type Peers struct {
	// Discover takes the live hosts of the lockspaces for peers, each as ssh://root@NAME.
	Discover       bool
	Hosts          map[string]string // name -> URL, see api.ParseTarget; before discovered ones
	SSHDir         string            // folder of id_ed25519 and known_hosts
	ConnectTimeout time.Duration     // until a host answers; twice that until its daemon does
	CallTimeout    time.Duration     // of a request that has no deadline of its own
	Parallel       int               // hosts asked at the same time
	// FenceStatus is the site's command that tells whether a host is off; "": there is none.
	FenceStatus string
}

// Migration says what is done around live migrations.
type Migration struct {
	Isolate bool // a guest that a migration has left over is cut off from its volumes
}

// Paths move what the daemon reads and writes; for tests and unusual set-ups.
type Paths struct {
	StateDir    string   // database and spool
	RunDir      string   // sockets and hook.json
	LibvirtRun  string   // libvirt's status files
	Definitions string   // libvirt's definitions of guests
	ManagedSave string   // libvirt's managed-save images
	PoolDirs    []string // definitions of libvirt storage pools
	Proc        string
	Sys         string
	Dev         string
	Root        string   // put before every disk path of a guest; empty: none
	Tools       []string // directories searched for lvm, sanlock, ...; empty: the usual ones
	BreakGlass  string
	SocketGroup string // group that may use the read-write socket; empty: root alone
}

// Default is the configuration of an empty file.
func Default() *Config {
	return &Config{
		Scope:     Scope{VolumeGroups: []string{}, Exclude: []string{}},
		VGs:       map[string]VG{},
		Hook:      Hook{Deadline: time.Minute},
		LVM:       LVM{Timeout: 40 * time.Second, LockstartRetry: 5 * time.Second},
		Boot:      Boot{Wait: 90 * time.Second},
		Reconcile: Reconcile{Interval: time.Minute},
		Journal:   Journal{Keep: 30 * 24 * time.Hour},
		Log:       Log{Level: slog.LevelInfo},
		Peers: Peers{
			Discover: true, Hosts: map[string]string{}, SSHDir: "/etc/virtlvm/ssh",
			ConnectTimeout: 5 * time.Second, CallTimeout: 15 * time.Second, Parallel: 64,
		},
		Volumes: Volumes{ZeroOnDelete: []string{}},
		Paths: Paths{
			StateDir:    "/var/lib/virtlvm",
			RunDir:      "/run/virtlvm",
			LibvirtRun:  "/run/libvirt/qemu",
			Definitions: "/etc/libvirt/qemu",
			ManagedSave: "/var/lib/libvirt/qemu/save",
			PoolDirs:    []string{"/run/libvirt/storage", "/etc/libvirt/storage"},
			Proc:        "/proc",
			Sys:         "/sys",
			Dev:         "/dev",
			Tools:       []string{},
			BreakGlass:  "/etc/virtlvm/break-glass",
			SocketGroup: "virtlvm",
		},
	}
}

// Load reads the configuration at path; a missing file means all defaults. A file with
// mistakes is refused with *Error.
func Load(path string) (*Config, error) {
	data, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Default(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read configuration: %w", err)
	}
	return Parse(path, data)
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxSize {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxSize)
	}
	return data, nil
}
