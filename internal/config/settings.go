package config

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// setting is one key of the file: where it stands and how its value gets into a Config.
type setting struct {
	section, key string
	set          func(c *Config, value any) error
}

// settings is every key there is. The example file and virtlvm.toml(5) list the same.
var settings = []setting{
	{"scope", "volume_groups", list(func(c *Config) *[]string { return &c.Scope.VolumeGroups }, vgName)},
	{"scope", "exclude", list(func(c *Config) *[]string { return &c.Scope.Exclude }, vgName)},
	{"hook", "deadline", duration(func(c *Config) *time.Duration { return &c.Hook.Deadline }, time.Second, 10*time.Minute)},
	{"lvm", "timeout", duration(func(c *Config) *time.Duration { return &c.LVM.Timeout }, time.Second, 10*time.Minute)},
	{"lvm", "lockstart_retry", duration(func(c *Config) *time.Duration { return &c.LVM.LockstartRetry }, 100*time.Millisecond, 10*time.Minute)},
	{"boot", "wait", duration(func(c *Config) *time.Duration { return &c.Boot.Wait }, 0, 10*time.Minute)},
	{"reconcile", "interval", duration(func(c *Config) *time.Duration { return &c.Reconcile.Interval }, 100*time.Millisecond, time.Hour)},
	{"locks", "release", setRelease},
	{"journal", "keep", duration(func(c *Config) *time.Duration { return &c.Journal.Keep }, time.Hour, 10*365*24*time.Hour)},
	{"log", "level", setLevel},
	{"peers", "discover", setDiscover},
	{"peers", "hosts", setHosts},
	{"peers", "ssh_dir", text(func(c *Config) *string { return &c.Peers.SSHDir }, plainPath)},
	{"peers", "connect_timeout", duration(func(c *Config) *time.Duration { return &c.Peers.ConnectTimeout }, 100*time.Millisecond, time.Minute)},
	{"peers", "call_timeout", duration(func(c *Config) *time.Duration { return &c.Peers.CallTimeout }, 100*time.Millisecond, 10*time.Minute)},
	{"peers", "parallel", setParallel},
	{"peers", "fence_status", text(func(c *Config) *string { return &c.Peers.FenceStatus }, absoluteOrEmpty)},
	{"migration", "leftover", setLeftover},
	{"volumes", "zero_on_delete", list(func(c *Config) *[]string { return &c.Volumes.ZeroOnDelete }, vgNameOrAll)},
	{"metrics", "textfile", text(func(c *Config) *string { return &c.Metrics.Textfile }, promFile)},
	{"paths", "state_dir", text(func(c *Config) *string { return &c.Paths.StateDir }, absolute)},
	{"paths", "run_dir", text(func(c *Config) *string { return &c.Paths.RunDir }, absolute)},
	{"paths", "libvirt_run", text(func(c *Config) *string { return &c.Paths.LibvirtRun }, absolute)},
	{"paths", "definitions", text(func(c *Config) *string { return &c.Paths.Definitions }, absolute)},
	{"paths", "managed_save", text(func(c *Config) *string { return &c.Paths.ManagedSave }, absolute)},
	{"paths", "pool_dirs", list(func(c *Config) *[]string { return &c.Paths.PoolDirs }, absolute)},
	{"paths", "proc", text(func(c *Config) *string { return &c.Paths.Proc }, absolute)},
	{"paths", "sys", text(func(c *Config) *string { return &c.Paths.Sys }, absolute)},
	{"paths", "dev", text(func(c *Config) *string { return &c.Paths.Dev }, absolute)},
	{"paths", "root", text(func(c *Config) *string { return &c.Paths.Root }, absoluteOrEmpty)},
	{"paths", "tools", list(func(c *Config) *[]string { return &c.Paths.Tools }, absolute)},
	{"paths", "break_glass", text(func(c *Config) *string { return &c.Paths.BreakGlass }, absolute)},
	{"paths", "socket_group", text(func(c *Config) *string { return &c.Paths.SocketGroup }, groupName)},
}

// elementError is a mistake in one element of a list or a table.
type elementError struct {
	at  string // "[INDEX]" or ".KEY"
	err error
}

func element(index int, err error) error { return &elementError{fmt.Sprintf("[%d]", index), err} }

func (e *elementError) Error() string { return e.err.Error() }

func text(field func(*Config) *string, check func(string) error) func(*Config, any) error {
	return func(c *Config, value any) error {
		s, ok := value.(string)
		if !ok {
			return errors.New("must be a text in quotes")
		}
		if err := check(s); err != nil {
			return err
		}
		*field(c) = s
		return nil
	}
}

func list(field func(*Config) *[]string, check func(string) error) func(*Config, any) error {
	return func(c *Config, value any) error {
		items, ok := value.([]any)
		if !ok {
			return errors.New(`must be a list of texts such as ["a", "b"]`)
		}
		out := make([]string, 0, len(items))
		for i, item := range items {
			s, ok := item.(string)
			if !ok {
				return element(i, errors.New(`must be a list of texts such as ["a", "b"]`))
			}
			if err := check(s); err != nil {
				return element(i, err)
			}
			if slices.Contains(out, s) {
				return element(i, fmt.Errorf("%q is there twice", s))
			}
			out = append(out, s)
		}
		*field(c) = out
		return nil
	}
}

func duration(field func(*Config) *time.Duration, low, high time.Duration) func(*Config, any) error {
	return func(c *Config, value any) error {
		s, ok := value.(string)
		if !ok {
			return errors.New(`must be a duration in quotes such as "90s" or "1h30m"`)
		}
		d, err := time.ParseDuration(s)
		if err != nil {
			return fmt.Errorf(`%q is not a duration; write one such as "90s" or "1h30m"`, s)
		}
		if d < low || d > high {
			return fmt.Errorf("%s is out of range; allowed are %s to %s", s, Short(low), Short(high))
		}
		*field(c) = d
		return nil
	}
}

func setLevel(c *Config, value any) error {
	levels := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	}
	s, _ := value.(string)
	level, ok := levels[s]
	if !ok {
		return errors.New(`must be "debug", "info", "warn" or "error"`)
	}
	c.Log.Level = level
	return nil
}

func setRelease(c *Config, value any) error {
	switch value {
	case "deactivate":
		c.Locks.Retain = false
	case "retain":
		c.Locks.Retain = true
	default:
		return errors.New(`must be "deactivate" or "retain"`)
	}
	return nil
}

// setLeftover reads what is done with a guest that a migration has left over.
func setLeftover(c *Config, value any) error {
	switch value {
	case "report":
		c.Migration.Isolate = false
	case "isolate":
		c.Migration.Isolate = true
	default:
		return errors.New(`must be "report" or "isolate"`)
	}
	return nil
}

var (
	vgPattern    = regexp.MustCompile(`^[a-zA-Z0-9+_.][a-zA-Z0-9+_.-]{0,126}$`)
	groupPattern = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_-]{0,30}$`)
)

// vgName checks a name by lvm(8), VALID NAMES.
func vgName(s string) error {
	if !vgPattern.MatchString(s) || s == "." || s == ".." {
		return fmt.Errorf("%q is not a name of a volume group", s)
	}
	return nil
}

// vgNameOrAll also takes "*".
func vgNameOrAll(s string) error {
	if s == allVGs {
		return nil
	}
	return vgName(s)
}

// groupName checks a name by systemd's rules for users and groups (sysusers.d(5)).
func groupName(s string) error {
	if s != "" && !groupPattern.MatchString(s) {
		return fmt.Errorf("%q is not a name of a group", s)
	}
	return nil
}

func absolute(s string) error {
	if !filepath.IsAbs(s) || strings.ContainsRune(s, 0) {
		return fmt.Errorf("%q is not an absolute path", s)
	}
	return nil
}

func absoluteOrEmpty(s string) error {
	if s == "" {
		return nil
	}
	return absolute(s)
}

// promFile is a file that node_exporter's textfile collector reads.
func promFile(s string) error {
	if s != "" && filepath.Ext(s) != ".prom" {
		return errors.New("must end with .prom, or node_exporter does not read it")
	}
	return absoluteOrEmpty(s)
}

// Short is a duration without its zero tail: "10m" where Go says "10m0s".
func Short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
