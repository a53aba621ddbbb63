package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAptURIs checks that the image's mirror is found in both forms of apt's sources.
func TestAptURIs(t *testing.T) {
	oneLine := `# comment
deb http://a.example/debian bookworm main contrib # tail
deb-src http://a.example/debian bookworm main
  deb [signed-by=/usr/share/x.gpg arch=amd64] http://b.example/debian/   trixie   main
#deb http://off.example/debian trixie main
`
	deb822 := `# about this file
Types: deb deb-src
# http://snapshot.example/
URIs: http://c.example/debian/ http://d.example/debian
Suites: trixie
 trixie-updates
Components: main non-free-firmware
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: trixie
Components: main

Types: deb-src
URIs: http://off.example/debian
Suites: trixie
Components: main
`
	second := "Types: deb\nURIs: mirror+file:///etc/apt/mirrors/debian.list\nSuites: trixie\nComponents: main"
	tests := []struct {
		name  string
		files map[string]string
		want  []string
	}{
		{"one line", map[string]string{"sources.list": oneLine}, []string{
			"http://a.example/debian bookworm main,contrib",
			"http://b.example/debian/ trixie main",
		}},
		{"deb822", map[string]string{"sources.list.d/debian.sources": deb822, "sources.list.d/z.sources": second}, []string{
			"http://c.example/debian/ trixie,trixie-updates main,non-free-firmware",
			"http://d.example/debian trixie,trixie-updates main,non-free-firmware",
			"mirror+file:///etc/apt/mirrors/debian.list trixie main",
		}},
		{"both", map[string]string{"sources.list.d/x.list": "deb http://e.example/d sid main", "sources.list.d/z.sources": second}, []string{
			"http://e.example/d sid main",
			"mirror+file:///etc/apt/mirrors/debian.list trixie main",
		}},
		{"none", nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.Mkdir(filepath.Join(dir, "sources.list.d"), 0o755))
			for name, content := range tt.files {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
			}
			cmd := exec.Command("bash", "-euc", ". image/mirror.sh; apt_uris")
			cmd.Env = append(os.Environ(), "APT_DIR="+dir)
			out, err := cmd.Output()
			require.NoError(t, err)
			var got []string
			for line := range strings.Lines(string(out)) {
				got = append(got, strings.TrimSpace(line))
			}
			assert.Equal(t, tt.want, got)
		})
	}
}
