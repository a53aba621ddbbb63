package config

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLoadMissingFileIsDefault(t *testing.T) {
	cfg, err := Load(filepath.Join(t.TempDir(), "none.toml"))
	require.NoError(t, err)
	assert.Equal(t, Default(), cfg)
}

func TestLoadRefusesWhatIsNotAConfiguration(t *testing.T) {
	dir := t.TempDir()
	_, err := Load(dir)
	require.ErrorContains(t, err, "cannot read configuration")

	big := filepath.Join(dir, "big.toml")
	require.NoError(t, os.WriteFile(big, []byte(strings.Repeat("#", maxSize+1)), 0o600))
	_, err = Load(big)
	require.ErrorContains(t, err, "larger than")
}

func TestLoadReadsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "virtlvm.toml")
	require.NoError(t, os.WriteFile(path, []byte("[hook]\ndeadline = \"5s\"\n"), 0o600))
	cfg, err := Load(path)
	require.NoError(t, err)
	want := Default()
	want.Hook.Deadline = 5 * time.Second
	assert.Equal(t, want, cfg)

	require.NoError(t, os.WriteFile(path, []byte("hook = 1\n"), 0o600))
	_, err = Load(path)
	var problems *Error
	require.ErrorAs(t, err, &problems)
	assert.Equal(t, path, problems.Problems[0].File)
}

func TestParseEveryKey(t *testing.T) {
	cfg, err := Parse("virtlvm.toml", []byte(`
reconcile = { interval = "2s" }
journal.keep = "1h"

[scope]
volume_groups = ["vg_san", "VG+2.x-y_z", "vg_old"]
exclude = [
  "vg_local", # a comment
]
[hook]
deadline = "10m"
[lvm]
timeout = "1s"
lockstart_retry = "1.5s"
[boot]
wait = "0s"
[log]
level = "warn"
[locks]
release = "retain"
[peers]
discover = false
hosts = { kvm-b = "ssh://root@10.0.0.2:2222", "kvm-c.example.org" = "unix:///run/c" }
ssh_dir = "/k"
connect_timeout = "1s"
call_timeout = "2s"
parallel = 3
fence_status = "/f/status"
[vg.vg_old]
unsafe_claims = true
members = ["kvm-b", "kvm-a"]
[vg."vg.2"]
unsafe_claims = false
[migration]
leftover = "isolate"
[volumes]
zero_on_delete = ["vg_san", "*"]
[metrics]
textfile = "/m/virtlvm.prom"
[paths]
state_dir = "/a"
run_dir = "/b"
libvirt_run = "/c"
definitions = "/q"
managed_save = "/r"
pool_dirs = []
proc = "/d"
sys = "/e"
dev = "/f"
root = "/g"
tools = ["/h", "/i"]
break_glass = "/j"
socket_group = ""
`))
	require.NoError(t, err)
	assert.Equal(t, &Config{
		Scope:     Scope{VolumeGroups: []string{"vg_san", "VG+2.x-y_z", "vg_old"}, Exclude: []string{"vg_local"}},
		Hook:      Hook{Deadline: 10 * time.Minute},
		LVM:       LVM{Timeout: time.Second, LockstartRetry: 1500 * time.Millisecond},
		Boot:      Boot{Wait: 0},
		Reconcile: Reconcile{Interval: 2 * time.Second},
		Journal:   Journal{Keep: time.Hour},
		Locks:     Locks{Retain: true},
		Log:       Log{Level: slog.LevelWarn},
		Peers: Peers{
			Hosts:  map[string]string{"kvm-b": "ssh://root@10.0.0.2:2222", "kvm-c.example.org": "unix:///run/c"},
			SSHDir: "/k", ConnectTimeout: time.Second, CallTimeout: 2 * time.Second, Parallel: 3, FenceStatus: "/f/status",
		},
		VGs:       map[string]VG{"vg_old": {UnsafeClaims: true, Members: []string{"kvm-a", "kvm-b"}}, "vg.2": {}},
		Migration: Migration{Isolate: true},
		Volumes:   Volumes{ZeroOnDelete: []string{"vg_san", "*"}},
		Metrics:   Metrics{Textfile: "/m/virtlvm.prom"},
		Paths: Paths{
			StateDir: "/a", RunDir: "/b", LibvirtRun: "/c", Definitions: "/q", ManagedSave: "/r", PoolDirs: []string{}, Proc: "/d", Sys: "/e",
			Dev: "/f", Root: "/g", Tools: []string{"/h", "/i"}, BreakGlass: "/j", SocketGroup: "",
		},
	}, cfg)
	assert.Equal(t, map[string][]string{"vg_old": {"kvm-a", "kvm-b"}}, cfg.Claims())
}

// A configuration of an older version is read by this one: an upgrade must not keep the daemon
// from starting. A key that is given up stays known.
func TestConfigurationOfAnOlderVersion(t *testing.T) {
	data, err := os.ReadFile("testdata/every-key.toml")
	require.NoError(t, err)
	_, err = Parse("every-key.toml", data)
	require.NoError(t, err)
	section, there := "", map[string]bool{}
	for _, line := range strings.Split(string(data), "\n") {
		if strings.HasPrefix(line, "[") {
			section = strings.Trim(line, "[]")
		} else if key, _, ok := strings.Cut(line, " = "); ok {
			there[section+"."+key] = true
		}
	}
	for _, s := range settings {
		assert.True(t, there[s.section+"."+s.key], "%s.%s is missing in testdata/every-key.toml", s.section, s.key)
	}
}

func TestParseRefuses(t *testing.T) {
	tests := []struct {
		name, text string
		want       []string
	}{
		{"unknown section", "\n[hok]\n", []string{`c.toml:2: unknown section or key "hok"; known sections: boot, hook, journal, locks, log, lvm, metrics, migration, paths, peers, reconcile, scope, vg, volumes`}},
		{"unknown key at top", `deadline = "1s"`, []string{`c.toml:1: unknown section or key "deadline"; known sections: boot, hook, journal, locks, log, lvm, metrics, migration, paths, peers, reconcile, scope, vg, volumes`}},
		{"unknown key", "[lvm]\n\ntime_out = \"1s\"", []string{`c.toml:3: unknown key "time_out" in [lvm]; known: timeout, lockstart_retry`}},
		{"key with a newline", "[lvm]\n\"a\\nb\" = 1", []string{`c.toml:2: unknown key "a\nb" in [lvm]; known: timeout, lockstart_retry`}},
		{"no section", "hook = 60", []string{`c.toml:1: hook must be a section: write [hook] on a line of its own`}},
		{"array of sections", "[[hook]]", []string{`c.toml:1: hook must be a section: write [hook] on a line of its own`}},
		{"duration without quotes", "[hook]\ndeadline = 60", []string{`c.toml:2: hook.deadline: must be a duration in quotes such as "90s" or "1h30m"`}},
		{"duration without unit", "[hook]\ndeadline = \"60\"", []string{`c.toml:2: hook.deadline: "60" is not a duration; write one such as "90s" or "1h30m"`}},
		{"duration too short", "[hook]\ndeadline = \"999ms\"", []string{`c.toml:2: hook.deadline: 999ms is out of range; allowed are 1s to 10m`}},
		{"duration too long", "[hook]\ndeadline = \"10m1s\"", []string{`c.toml:2: hook.deadline: 10m1s is out of range; allowed are 1s to 10m`}},
		{"negative duration", "[boot]\nwait = \"-1s\"", []string{`c.toml:2: boot.wait: -1s is out of range; allowed are 0s to 10m`}},
		{"level", "[log]\nlevel = \"loud\"", []string{`c.toml:2: log.level: must be "debug", "info", "warn" or "error"`}},
		{"level no text", "[log]\nlevel = 3", []string{`c.toml:2: log.level: must be "debug", "info", "warn" or "error"`}},
		{"list no list", "[scope]\nexclude = \"vg\"", []string{`c.toml:2: scope.exclude: must be a list of texts such as ["a", "b"]`}},
		{"list of numbers", "[scope]\nexclude = [\n\"vg\",\n1]", []string{`c.toml:4: scope.exclude: must be a list of texts such as ["a", "b"]`}},
		{"list of lists", "[scope]\nexclude = [\n[]]", []string{`c.toml:2: scope.exclude: must be a list of texts such as ["a", "b"]`}},
		{"element on its own line", "[scope]\nexclude = [\n \"vg\",\n \"-vg\"]", []string{`c.toml:4: scope.exclude: "-vg" is not a name of a volume group`}},
		{"twice", "[scope]\nexclude = [\"vg\", \"vg\"]", []string{`c.toml:2: scope.exclude: "vg" is there twice`}},
		{"in both lists", "[scope]\nexclude = [\"vg\"]\nvolume_groups = [\"a\",\n\"vg\"]", []string{`c.toml:4: scope.volume_groups: vg is in scope.exclude as well; keep it in one of the two`}},
		{"relative path", "[paths]\nproc = \"proc\"", []string{`c.toml:2: paths.proc: "proc" is not an absolute path`}},
		{"relative root", "[paths]\nroot = \"x\"", []string{`c.toml:2: paths.root: "x" is not an absolute path`}},
		{"path no text", "[paths]\nproc = true", []string{`c.toml:2: paths.proc: must be a text in quotes`}},
		{"path with NUL", "[paths]\ntools = [\"/a\\u0000\"]", []string{`c.toml:2: paths.tools: "/a\x00" is not an absolute path`}},
		{"group", "[paths]\nsocket_group = \"a b\"", []string{`c.toml:2: paths.socket_group: "a b" is not a name of a group`}},
		{"discover no switch", "[peers]\ndiscover = \"yes\"", []string{`c.toml:2: peers.discover: must be true or false`}},
		{"release of no kind", "[locks]\nrelease = true", []string{`c.toml:2: locks.release: must be "deactivate" or "retain"`}},
		{"leftover unknown", "[migration]\nleftover = \"kill\"", []string{`c.toml:2: migration.leftover: must be "report" or "isolate"`}},
		{"textfile of another name", "[metrics]\ntextfile = \"/m/virtlvm.txt\"", []string{`c.toml:2: metrics.textfile: must end with .prom, or node_exporter does not read it`}},
		{"textfile without folder", "[metrics]\ntextfile = \"virtlvm.prom\"", []string{`c.toml:2: metrics.textfile: "virtlvm.prom" is not an absolute path`}},
		{"leftover no text", "[migration]\nleftover = true", []string{`c.toml:2: migration.leftover: must be "report" or "isolate"`}},
		{"parallel none", "[peers]\nparallel = 0", []string{`c.toml:2: peers.parallel: must be a number from 1 to 256`}},
		{"parallel no number", "[peers]\nparallel = \"2\"", []string{`c.toml:2: peers.parallel: must be a number from 1 to 256`}},
		{"ssh folder with a space", "[peers]\nssh_dir = \"/a b\"", []string{`c.toml:2: peers.ssh_dir: "/a b" is not an absolute path of letters, digits and ._/@:+-`}},
		{"ssh folder expanded", "[peers]\nssh_dir = \"/%d\"", []string{`c.toml:2: peers.ssh_dir: "/%d" is not an absolute path of letters, digits and ._/@:+-`}},
		{"hosts no table", "[peers]\nhosts = [\"kvm-b\"]", []string{`c.toml:2: peers.hosts: must be a table such as { kvm-b = "ssh://root@kvm-b:22" }`}},
		{"host no text", "[peers.hosts]\nkvm-a = \"ssh://kvm-a\"\nkvm-b = 1", []string{`c.toml:3: peers.hosts: must be a table such as { kvm-b = "ssh://root@kvm-b:22" }`}},
		{"host with an option", "[peers]\nhosts = {\"-oProxyCommand=id\" = \"ssh://kvm-b\"}", []string{`c.toml:2: peers.hosts: "-oProxyCommand=id" is not a name of a host`}},
		{"host without a URL", "[peers.hosts]\n\nkvm-b = \"http://kvm-b\"", []string{`c.toml:3: peers.hosts: "http://kvm-b" is neither ssh://USER@HOST:PORT nor unix:///PATH`}},
		{"host at an option", "[peers]\nhosts.kvm-b = \"ssh://-oProxyCommand=id\"", []string{`c.toml:2: peers.hosts: "-oProxyCommand=id" is not a name of a host`}},
		{"vg no section", "vg = 1", []string{`c.toml:1: vg must hold sections: write [vg.NAME] on a line of its own`}},
		{"vg without a name", "[vg]\nunsafe_claims = true", []string{`c.toml:2: vg.unsafe_claims must be a section: write [vg.unsafe_claims] on a line of its own`}},
		{"vg of no name", "[vg.\"-a\"]", []string{`c.toml:1: vg.-a: "-a" is not a name of a volume group`}},
		{"vg key", "[vg.a]\nclaims = true", []string{`c.toml:2: unknown key "claims" in [vg.a]; known: unsafe_claims, members`}},
		{"claims no switch", "[vg.a]\nunsafe_claims = \"yes\"", []string{`c.toml:2: vg.a.unsafe_claims: must be true or false`}},
		{"member of no name", "[vg.a]\nmembers = [\"b\", \"-c\"]", []string{`c.toml:2: vg.a.members: "-c" is not a name of a host`}},
		{"claims without members", "[vg.a]\nunsafe_claims = true", []string{`c.toml:2: vg.a: name all hosts that see a in members, this one included (0 are named)`}},
		{"claims out of scope", "[scope]\nexclude = [\"a\"]\n[vg.a]\nunsafe_claims = true\nmembers = [\"x\", \"y\"]", []string{`c.toml:4: vg.a: a is not in [scope], so that nothing of it would be claimed; correct one of the two`}},
		{"fence_status", "[peers]\nfence_status = \"stat\"", []string{`c.toml:2: peers.fence_status: "stat" is not an absolute path`}},
		{"inline table", "hook = { deadline = 1 }", []string{`c.toml:1: hook.deadline: must be a duration in quotes such as "90s" or "1h30m"`}},
		{
			"everything is listed, in the order of the file",
			"[lvm]\ntimeout = 1\n[hook]\nx = 1\n[log]\nlevel = \"\"\n[nope]\n",
			[]string{
				`c.toml:2: lvm.timeout: must be a duration in quotes such as "90s" or "1h30m"`,
				`c.toml:4: unknown key "x" in [hook]; known: deadline`,
				`c.toml:6: log.level: must be "debug", "info", "warn" or "error"`,
				`c.toml:7: unknown section or key "nope"; known sections: boot, hook, journal, locks, log, lvm, metrics, migration, paths, peers, reconcile, scope, vg, volumes`,
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg, err := Parse("c.toml", []byte(tt.text))
			assert.Nil(t, cfg)
			var refused *Error
			require.ErrorAs(t, err, &refused)
			var got []string
			for _, p := range refused.Problems {
				got = append(got, p.String())
			}
			assert.Equal(t, tt.want, got)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}

func TestParseSyntaxErrorsHaveALine(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		line int
	}{
		"garbage":           {"[hook]\n= 1", 2},
		"open text":         {"[hook]\n\ndeadline = \"60s", 3},
		"open list":         {"[scope]\nexclude = [\"a\"", 2},
		"duplicate key":     {"[hook]\ndeadline = \"1s\"\ndeadline = \"2s\"", 3},
		"duplicate section": {"[hook]\n[hook]", 2},
		"not UTF-8":         {"[hook]\ndeadline = \"\xff\"", 2},
		"binary":            {"\x00\x01", 1},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("c.toml", []byte(tt.text))
			var refused *Error
			require.ErrorAs(t, err, &refused)
			require.Len(t, refused.Problems, 1)
			assert.Equal(t, tt.line, refused.Problems[0].Line, err)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}

func TestErrorIsOneLine(t *testing.T) {
	one := &Error{Problems: []Problem{{"f", 1, "bad"}}}
	assert.Equal(t, "f:1: bad", one.Error())
	three := &Error{Problems: []Problem{{"f", 1, "bad"}, {"f", 2, "worse"}, {"f", 3, "worst"}}}
	assert.Equal(t, "f:1: bad (and 2 more: run `virtlvm config check`)", three.Error())
	assert.False(t, errors.Is(one, three))
}

func TestScopeIncludes(t *testing.T) {
	assert.True(t, Scope{}.Includes("any"))
	assert.False(t, Scope{Exclude: []string{"vg"}}.Includes("vg"))
	assert.True(t, Scope{VolumeGroups: []string{"vg"}}.Includes("vg"))
	assert.False(t, Scope{VolumeGroups: []string{"vg"}}.Includes("other"))
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", 10 * time.Second: "10s", 70 * time.Second: "1m10s", 10 * time.Minute: "10m",
		time.Hour: "1h", 70 * time.Minute: "1h10m", 720 * time.Hour: "720h", 100 * time.Millisecond: "100ms",
	} {
		assert.Equal(t, want, Short(d))
	}
}

// The example file must show every key with its true default, and nothing else.
func TestExampleFileIsComplete(t *testing.T) {
	example, err := os.ReadFile("../../packaging/virtlvm.toml")
	require.NoError(t, err)
	cfg, err := Parse("virtlvm.toml", example)
	require.NoError(t, err)
	assert.Equal(t, Default(), cfg, "everything is commented out")

	uncommented := regexp.MustCompile(`(?m)^#(\w+ = )`).ReplaceAll(example, []byte("$1"))
	cfg, err = Parse("virtlvm.toml", uncommented)
	require.NoError(t, err)
	assert.Equal(t, Default(), cfg, "the defaults shown are the true ones")

	section, found := "", map[string]bool{}
	for _, line := range strings.Split(string(uncommented), "\n") {
		if strings.HasPrefix(line, "[") {
			section = strings.Trim(line, "[]")
		} else if key, _, ok := strings.Cut(line, " = "); ok && !strings.HasPrefix(line, "#") {
			found[section+"."+key] = true
		}
	}
	man, err := os.ReadFile("../../packaging/man/virtlvm.toml.5")
	require.NoError(t, err)
	for _, s := range settings {
		name := s.section + "." + s.key
		assert.True(t, found[name], "%s is missing in the example file", name)
		assert.Contains(t, string(man), fmt.Sprintf(".B %s\n", s.key), "%s is missing in virtlvm.toml(5)", name)
	}
	assert.Len(t, found, len(settings))
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("[hook]\ndeadline = \"1s\"\n"))
	f.Add([]byte("scope = { exclude = [[], {a=1}, 'x'] }\n[a.b.\"c\\n\"]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := Parse("f", data)
		if (cfg == nil) == (err == nil) {
			t.Fatalf("cfg %v, err %v", cfg, err)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Fatalf("more than one line: %q", err)
		}
	})
}
