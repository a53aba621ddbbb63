package api

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCompatible(t *testing.T) {
	for _, tt := range []struct {
		major, minor int
		want         bool
	}{
		{ProtocolMajor, ProtocolMinor, true},
		{ProtocolMajor, ProtocolMinor + 1, true},
		{ProtocolMajor, ProtocolMinor - 1, true},
		{ProtocolMajor, ProtocolMinor + 2, false},
		{ProtocolMajor, ProtocolMinor - 2, false},
		{ProtocolMajor + 1, ProtocolMinor, false},
		{ProtocolMajor - 1, ProtocolMinor, false},
		{0, 0, false},
	} {
		assert.Equal(t, tt.want, Compatible(tt.major, tt.minor), "%d.%d", tt.major, tt.minor)
	}
}

func TestCheckHostName(t *testing.T) {
	for _, good := range []string{"a", "kvm-a", "kvm-a.example.org", "9", "A_b", "e2c6b0c4-4a57-4b41-9d0e-1a7a8d9b1f00.kvm-a", strings.Repeat("x", 63)} {
		require.NoError(t, CheckHostName(good))
	}
	for _, bad := range []string{
		"", "-a", ".a", "_a", "a b", "a\n", "\na", "a;b", "a$b", "a/b", "ü", "a\x00", "-oProxyCommand=id", strings.Repeat("x", 64),
	} {
		require.Error(t, CheckHostName(bad), "%q", bad)
	}
}

func TestParseTarget(t *testing.T) {
	for in, want := range map[string]struct {
		target Target
		text   string
	}{
		"kvm-b":                    {Target{Host: "kvm-b"}, "ssh://kvm-b"},
		"op@kvm-b":                 {Target{User: "op", Host: "kvm-b"}, "ssh://op@kvm-b"},
		"ssh://kvm-b":              {Target{Host: "kvm-b"}, "ssh://kvm-b"},
		"ssh://kvm-b/":             {Target{Host: "kvm-b"}, "ssh://kvm-b"},
		"ssh://root@kvm-b:2222":    {Target{User: "root", Host: "kvm-b", Port: 2222}, "ssh://root@kvm-b:2222"},
		"ssh://10.0.0.2":           {Target{Host: "10.0.0.2"}, "ssh://10.0.0.2"},
		"ssh://root@[fe80::1]":     {Target{User: "root", Host: "fe80::1"}, "ssh://root@[fe80::1]"},
		"_sys@kvm-b":               {Target{User: "_sys", Host: "kvm-b"}, "ssh://_sys@kvm-b"},
		"ssh://[2001:db8::1]:22":   {Target{Host: "2001:db8::1", Port: 22}, "ssh://[2001:db8::1]:22"},
		"unix:///run/v/peer.sock":  {Target{Socket: "/run/v/peer.sock"}, "unix:///run/v/peer.sock"},
		"unix:///a b":              {Target{Socket: "/a b"}, "unix:///a b"},
		"ssh://a.b@kvm-b.x.org:22": {Target{User: "a.b", Host: "kvm-b.x.org", Port: 22}, "ssh://a.b@kvm-b.x.org:22"},
	} {
		got, err := ParseTarget(in)
		require.NoError(t, err, in)
		assert.Equal(t, want.target, got, in)
		assert.Equal(t, want.text, got.String())
		again, err := ParseTarget(got.String())
		require.NoError(t, err)
		assert.Equal(t, got, again)
	}
}

func TestParseTargetRefuses(t *testing.T) {
	for _, bad := range []string{
		"", "-oProxyCommand=id", "kvm-b -oProxyCommand=id", "kvm-b\n", "kvm\tb", "@kvm-b", "-l@kvm-b", "a b@kvm-b", "a@", "a@b@c",
		"ssh://", "ssh://-oProxyCommand=id", "ssh://root@-oProxyCommand=id", "ssh://-l@kvm-b", "ssh://@kvm-b", "ssh://kvm-b:0",
		"ssh://kvm-b:65536", "ssh://kvm-b:x", "ssh://kvm-b:-1", "ssh://kvm-b/path", "ssh://kvm-b?x=1", "ssh://kvm-b?", "ssh://kvm-b#f", "ssh://kvm b",
		"ssh://kvm-b\n", "ssh://%6bvm", "ssh://$(id)", "ssh://a;b", "ssh://[fe80::1%25eth0]", "ssh://[fe80::1%eth0]", "ssh://[10.0.0.2]", "ssh://[fe80::1", "ssh://[fe80::1]x", "ssh://[fe80::1]x:22", "ssh://[:]", "ssh://[fe80:1]", "ssh://[g::1]", "ssh://[::1 -l]", "ssh://[" + strings.Repeat("0:", 30) + "]", "ssh://fe80::1", "ssh://[]", "ssh://kvm-b:", "ssh://kvm-b:+22",
		"ssh://kvm-b//", "ssh://a@b@kvm-b", "_@kvm-b", strings.Repeat("u", 64) + "@kvm-b", "ssh://a%20b@kvm-b",
		"unix://", "unix://run/x", "unix://relative", "unix:///a\nb", "unix:///a\x00", "http://kvm-b", "qemu+ssh://kvm-b/system", "SSH://kvm-b",
	} {
		_, err := ParseTarget(bad)
		require.Error(t, err, "%q", bad)
		assert.NotContains(t, err.Error(), "\n")
	}
	_, err := ParseTarget("ssh://root:hunter2@kvm-b")
	require.ErrorContains(t, err, "must not hold a password")
	assert.NotContains(t, err.Error(), "hunter2")
}

func FuzzParseTarget(f *testing.F) {
	f.Add("ssh://root@kvm-b:22")
	f.Add("unix:///run/x")
	f.Add("-oProxyCommand=id")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseTarget(s)
		if err != nil {
			return
		}
		if strings.HasPrefix(got.Host, "-") || strings.HasPrefix(got.User, "-") || strings.ContainsAny(got.Host+got.User, " \t\n\r'\"$;|&`\\%") {
			t.Fatalf("%q gives %+v", s, got)
		}
		again, err := ParseTarget(got.String())
		if err != nil || again != got {
			t.Fatalf("%q -> %+v -> %q -> %+v, %v", s, got, got.String(), again, err)
		}
	})
}
