// Package san is a fake SAN for tests and demonstrations: volume groups on a folder that
// many "hosts" share, with stand-ins for the LVM, sanlock and device-mapper tools.
//
// The messages, exit codes, lease rules and JSON shapes are those of LVM 2.03.31 with
// lvmlockd and sanlock 3.9.5 on Debian 13; package conformance runs one list of commands
// here and on real hosts and compares.
//
// Layout of the folder:
//
//	san.lock, san.state.*     all state, guarded by flock; processes and goroutines share it;
//	                          not there where the SAN is Alone
//	luns/VG/LVUUID            a volume's data, a sparse regular file
//	hosts/HOST/sys/block/...  dm-N/dm/{name,uuid} as the kernel shows them
//	hosts/HOST/dev/...        dm-N -> data; VG/LV, mapper/NAME, disk/by-id/... -> dm-N
//	hosts/HOST/open/NAME/PID  a process PID has the device NAME open
package san

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Versions of LVM whose behaviour differs; the minor number in 2.03.N.
const (
	LVM16 = 16 // Debian 12
	LVM31 = 31 // Debian 13, the default
	LVM33 = 33 // names the holder: "LV locked by other host: vg/lv (host_id 2)"
)

// longAgo is when the first lockspaces were started: long enough for all hosts to have
// seen each other live.
const longAgo = 2 * time.Minute

// Options describe a new SAN.
type Options struct {
	// Hosts are up, with every sanlock VG lock-started; host ids count from 1.
	Hosts []string
	// VGs are made with it; a VGSpec{Name: "vg_san"} is a usual one.
	VGs []VGSpec
	// LVM is one of LVM16, LVM31, LVM33; 0 means LVM31.
	LVM int
	// IOTimeout is sanlock's io_timeout in seconds; 0 means 2.
	IOTimeout int
	// Expiry is the time after its last renewal when a silent host counts as DEAD; 0
	// means 8*IOTimeout + 60 s, sanlock's rule.
	Expiry time.Duration
	// TimeScale makes the default clock run faster than real time; 0 means 1.
	TimeScale float64
	// Now is the SAN's Now for setting it up; nil means time.Now.
	Now func() time.Time
	// Alone keeps the state in memory, which costs less: nobody else can Open the SAN.
	Alone bool
}

// SAN is one process's handle on the folder. Set its fields before use; its methods may
// be called from many goroutines.
type SAN struct {
	// Now is the clock that leases and liveness go by. Nil means real time, scaled as
	// Options.TimeScale said.
	Now func() time.Time
	// DelayScale multiplies the delays measured on real hosts; 0 answers at once.
	DelayScale float64
	// Grace is how long a Runner waits for a program after its SIGTERM; 0 means 20 ms.
	Grace time.Duration
	// Wait is called where the real program takes d of time, in place of waiting
	// DelayScale x d. Command is the program and its arguments. It must return.
	Wait func(ctx context.Context, host string, command []string, d time.Duration)
	// CheckPids drops open markers whose process is gone. For real processes only.
	CheckPids bool

	dir   string
	alone bool
	mu    sync.Mutex
	lock  *os.File
	slots [2]*os.File
	cache *state
	gen   uint64 // version of cache; see store.go
	hosts map[string]*Host
	pids  int
	tools func() map[string]tool
	// syntax are the options of programs that have been run, by their lists.
	syntaxes sync.Mutex
	syntax   map[string]syntax
	// running are the programs that Runners have started and that have not ended, by pid.
	running map[int]process
}

func newSAN(dir string) *SAN {
	return &SAN{dir: dir, hosts: map[string]*Host{}, tools: sync.OnceValue(tools), syntax: map[string]syntax{}}
}

// Create makes a new SAN in dir, which must not hold one already.
func Create(dir string, o Options) (*SAN, error) {
	if err := os.MkdirAll(filepath.Join(dir, "luns"), 0o755); err != nil {
		return nil, fmt.Errorf("cannot create a SAN in %s: %w", dir, err)
	}
	if _, err := os.Stat(filepath.Join(dir, lockFile)); err == nil {
		return nil, fmt.Errorf("cannot create a SAN in %s: there is one already", dir)
	}
	s := newSAN(dir)
	s.alone, s.Now = o.Alone, o.Now
	st := &state{
		Epoch: time.Now().UnixNano(), TimeScale: o.TimeScale, LVM: o.LVM, IOTimeout: o.IOTimeout,
		Expiry: o.Expiry, Hosts: map[string]*hostState{}, VGs: map[string]*vgState{},
	}
	if st.LVM == 0 {
		st.LVM = LVM31
	}
	if st.IOTimeout == 0 {
		st.IOTimeout = 2
	}
	if err := s.init(st); err != nil {
		return nil, fmt.Errorf("cannot create a SAN in %s: %w", dir, err)
	}
	for _, name := range o.Hosts {
		if _, err := s.AddHost(name); err != nil {
			return nil, err
		}
	}
	for _, vg := range o.VGs {
		if err := s.AddVG(vg); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Open opens the SAN that Create has made in dir.
func Open(dir string) (*SAN, error) {
	if _, err := os.Stat(filepath.Join(dir, lockFile)); err != nil {
		return nil, fmt.Errorf("cannot open a SAN in %s: %w", dir, err)
	}
	return newSAN(dir), nil
}

// Close gives up the handle. The folder stays.
func (s *SAN) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return nil
	}
	err := s.lock.Close()
	for i, f := range s.slots {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
		s.slots[i] = nil
	}
	s.lock, s.cache = nil, nil
	return err
}

// Dir is the folder.
func (s *SAN) Dir() string { return s.dir }

// Host returns the handle of a host; the same one every time.
func (s *SAN) Host(name string) (*Host, error) {
	err := s.view(func(st *state) error {
		if st.Hosts[name] == nil {
			return fmt.Errorf("no host %q on this SAN", name)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hosts[name]
	if h == nil {
		h = &Host{san: s, name: name}
		s.hosts[name] = h
	}
	return h, nil
}

// Hosts are the names of all hosts, by host id.
func (s *SAN) Hosts() ([]string, error) {
	var names []string
	err := s.view(func(st *state) error {
		for _, h := range st.hostsByID() {
			names = append(names, h.Name)
		}
		return nil
	})
	return names, err
}

// AddHost adds a host that has been up for a while, with every sanlock VG started.
func (s *SAN) AddHost(name string) (*Host, error) {
	if name == "" || filepath.Base(name) != name {
		return nil, fmt.Errorf("cannot add host %q: not a plain name", name)
	}
	err := s.update(func(st *state) error {
		if st.Hosts[name] != nil {
			return errors.New("it is there already")
		}
		now := s.now(st)
		h := &hostState{Name: name, ID: len(st.Hosts) + 1, Spaces: map[string]*space{}, Devs: map[string]*device{}}
		h.BootedAt = now.Add(-5 * time.Minute).UnixNano()
		st.Hosts[name] = h
		for _, dir := range []string{"sys/block", "dev/mapper", "dev/disk/by-id", "open"} {
			if err := os.MkdirAll(filepath.Join(s.hostDir(name), dir), 0o755); err != nil {
				return err
			}
		}
		for _, vg := range st.vgsByName() {
			if err := s.startLockspace(h, vg, now.Add(-longAgo)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot add host %q: %w", name, err)
	}
	return s.Host(name)
}

func (s *SAN) hostDir(name string) string { return filepath.Join(s.dir, "hosts", name) }

// now is the SAN's time. The scaled clock starts at the SAN's making, so that all
// processes agree on it.
func (s *SAN) now(st *state) time.Time {
	if s.Now != nil {
		return s.Now()
	}
	now := time.Now()
	if st.TimeScale > 0 && st.TimeScale != 1 {
		epoch := time.Unix(0, st.Epoch)
		return epoch.Add(time.Duration(float64(now.Sub(epoch)) * st.TimeScale))
	}
	return now
}
