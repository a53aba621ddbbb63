package cluster

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"libvirt.org/go/libvirtxml"
)

func TestGuestXML(t *testing.T) {
	g := Guest{Name: "a<b>", Disks: []Disk{
		{Source: "/dev/vg_san/one"},
		{Source: "/dev/vg_san/top", Format: "qcow2", Backing: []Disk{
			{Source: "/dev/vg_san/mid", Format: "qcow2"}, {Source: "/dev/vg_san/base"},
		}},
		{Type: "volume", Pool: "san", Source: "two", Shareable: true},
		{Type: "file", Source: "/tmp/x", ReadOnly: true},
	}}
	text, err := g.XML()
	require.NoError(t, err)
	var d libvirtxml.Domain
	require.NoError(t, d.Unmarshal(text))

	assert.Equal(t, "a<b>", d.Name)
	assert.Equal(t, g.UUID(), d.UUID)
	require.Len(t, d.Devices.Disks, 4)
	disks := d.Devices.Disks
	assert.Equal(t, "/dev/vg_san/one", disks[0].Source.Block.Dev)
	assert.Equal(t, "raw", disks[0].Driver.Type)
	assert.Nil(t, disks[0].BackingStore)
	mid := disks[1].BackingStore
	assert.Equal(t, "/dev/vg_san/mid", mid.Source.Block.Dev)
	assert.Equal(t, "qcow2", mid.Format.Type)
	assert.Equal(t, "/dev/vg_san/base", mid.BackingStore.Source.Block.Dev)
	assert.Equal(t, "raw", mid.BackingStore.Format.Type)
	assert.Equal(t, "san", disks[2].Source.Volume.Pool)
	assert.NotNil(t, disks[2].Shareable)
	assert.Equal(t, "/tmp/x", disks[3].Source.File.File)
	assert.NotNil(t, disks[3].ReadOnly)
	assert.Equal(t, "vdd", disks[3].Target.Dev)
}

func TestGuestUUID(t *testing.T) {
	one, two := Guest{Name: "vm1"}.UUID(), Guest{Name: "vm2"}.UUID()
	assert.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, one)
	assert.NotEqual(t, one, two)
	assert.Equal(t, one, Guest{Name: "vm1", Disks: []Disk{{}}}.UUID())
}

func TestBootSector(t *testing.T) {
	for _, sector := range [][]byte{BootSector(), probeSector()} {
		require.Len(t, sector, sectorSize)
		assert.Equal(t, []byte{0x55, 0xaa}, sector[510:])
	}
	// The calls, the jumps and the packet's address depend on every byte before them.
	packet := BootSector()[0x51:0x61]
	assert.Equal(t, []byte{0x10, 0, 1, 0, 0x00, 0x7e, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}, packet)
}

func TestParseCounter(t *testing.T) {
	n, err := parseCounter([]byte(counterMagic + "\x02\x01\x00\x00rest"))
	require.NoError(t, err)
	assert.Equal(t, uint32(0x102), n)
	for _, bad := range []string{"", counterMagic, "VIRTLVM0\x02\x01\x00\x00"} {
		_, err := parseCounter([]byte(bad))
		require.Error(t, err, bad)
	}
}

func TestQuote(t *testing.T) {
	for _, word := range []string{"", "a b", "it's", `"$HOME"` + "`x`\n", "-x"} {
		out, err := exec.Command("sh", "-c", "printf %s "+Quote(word)).Output()
		require.NoError(t, err)
		assert.Equal(t, word, string(out))
	}
}
