package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"virtlvm/internal/api"
	"virtlvm/internal/check"
	"virtlvm/internal/config"
	"virtlvm/internal/domain"
	"virtlvm/internal/lease"
	"virtlvm/internal/lvm"
	"virtlvm/internal/relay"
	"virtlvm/internal/run"
	"virtlvm/internal/store"
)

// checkTime bounds the checks of one host without a daemon.
const checkTime = 3 * time.Minute

// checkParts are what the engine and the checks have in common.
type checkParts struct {
	lvm      *lvm.LVM
	leases   *lease.Reader
	resolver *domain.Resolver
	looks    run.Runner
	bootID   string
}

// Check runs the checks without a daemon and writes the report as JSON: for `virtlvm
// check` where virtlvmd cannot be reached. It changes nothing, the database included.
func Check(configPath string, out io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("-check looks at what only root may see: run it as root")
	}
	d := &Daemon{configPath: configPath, log: slog.New(slog.DiscardHandler)}
	cfg, err := config.Load(configPath)
	if err != nil {
		cfg = config.Default() // the report says why
	}
	d.config.Store(cfg)
	if d.scratch, err = os.MkdirTemp("", "virtlvmd-check-"); err != nil {
		return fmt.Errorf("cannot make a folder for the output of programs: %w", err)
	}
	defer func() { _ = os.RemoveAll(d.scratch) }() // ours alone, and temporary
	if d.engine, err = d.newEngine(); err != nil {
		return err
	}
	defer d.peers.Close()
	ctx, cancel := context.WithTimeout(context.Background(), checkTime)
	defer cancel()
	report, err := d.newChecker(true).Check(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode([]api.CheckReport{report})
}

// newChecker wires the checks to this host. alone: without a daemon.
func (d *Daemon) newChecker(alone bool) *check.Checker {
	cfg := d.config.Load()
	return check.New(check.Sources{
		LVM: d.parts.lvm, Leases: d.parts.leases, Engine: d.engine, Guests: d.observer, Resolver: d.parts.resolver,
		Peers: d.peers, Runner: d.parts.looks,
		Journal: func() (check.Journal, error) {
			return store.Inspect(filepath.Join(cfg.Paths.StateDir, "virtlvm.db"))
		},
		Root: os.DirFS(filepath.Join("/", cfg.Paths.Root)), Proc: os.DirFS(cfg.Paths.Proc), Sys: os.DirFS(cfg.Paths.Sys),
		Have: haveIn(cfg.Paths.Tools), Stat: os.Stat, Version: d.askSocket, Space: space,
		Label: func(path string) (string, error) { return label(filepath.Join("/", cfg.Paths.Root, path)) },
		Alone: alone, Host: d.host, BootID: d.parts.bootID, Now: time.Now, Uptime: uptime,
		Pause:   func() { time.Sleep(2 * time.Second) },
		Scope:   func() []string { return d.config.Load().Scope.VolumeGroups },
		Members: func() map[string][]string { return d.config.Load().Claims() },
		Keep:    func() time.Duration { return d.config.Load().Journal.Keep },
		Config: func() error {
			_, err := config.Load(d.configPath)
			return err
		},
		RunDir: cfg.Paths.RunDir, StateDir: cfg.Paths.StateDir,
		BreakGlass: func() string {
			if !d.settings().BreakGlass() {
				return ""
			}
			return cfg.Paths.BreakGlass
		},
		Spool: d.countSpool,
	}, d.peers)
}

// haveIn reports whether a program is in one of some folders, or those that run takes by
// default.
func haveIn(dirs []string) func(string) bool {
	if len(dirs) == 0 {
		dirs = []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	}
	return func(name string) bool {
		for _, dir := range dirs {
			info, err := os.Stat(filepath.Join(dir, name))
			if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
				return true
			}
		}
		return false
	}
}

// askSocket asks the daemon for its version, on the peer socket under this host's own name.
func (d *Daemon) askSocket(ctx context.Context, path string) error {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err == nil && filepath.Base(path) == filepath.Base(api.PeerSocketPath) {
			if err = relay.Introduce(conn, d.host); err != nil {
				err = errors.Join(err, conn.Close())
			}
		}
		return conn, err
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://virtlvmd"+api.RouteVersion, nil)
	if err != nil {
		return err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

func space(path string) check.Space {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return check.Space{Path: path, Err: fmt.Errorf("cannot tell the room in %s: %w", path, err)}
	}
	s := check.Space{Path: path, Free: st.Bfree * uint64(st.Frsize), Files: st.Ffree} //nolint:gosec // sizes are not negative
	if st.Files == 0 {
		s.Files = ^uint64(0) // as btrfs says that there is no limit
	}
	return s
}

// label is the SELinux context of a file.
func label(path string) (string, error) {
	buffer := make([]byte, 256)
	n, err := unix.Getxattr(path, "security.selinux", buffer)
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(buffer[:n]), "\x00"), nil
}
