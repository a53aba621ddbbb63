package activation

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/guests"
)

// A status file is read again when it says something else, and only then.
func TestStatusIsReadWhenItChanges(t *testing.T) {
	const uuid = "11111111-2222-3333-4444-555555555555"
	doc := func(disk string) guests.Guest {
		return guests.Guest{Name: "vm1", UUID: uuid, XML: []byte("<domstatus state='running' pid='7'><domain type='kvm'><name>vm1</name><uuid>" + uuid +
			"</uuid><devices><disk type='block' device='disk'><source dev='" + disk + "'/><target dev='vda'/></disk></devices></domain></domstatus>")}
	}
	m := &Manager{parsed: map[string]document{}, adopted: map[string]string{}}
	first, err := m.readStatus(doc("/dev/vg/a"))
	require.NoError(t, err)
	assert.Contains(t, first.key, "/dev/vg/a")
	again, err := m.readStatus(doc("/dev/vg/a"))
	require.NoError(t, err)
	assert.Same(t, first.domain, again.domain)
	other, err := m.readStatus(doc("/dev/vg/b"))
	require.NoError(t, err)
	assert.Equal(t, "/dev/vg/b", other.domain.Disks[0].Source.Path)
	assert.NotEqual(t, first.key, other.key)
	moving := doc("/dev/vg/b")
	moving.XML = []byte(strings.Replace(string(moving.XML), "<domain ", "<job type='none' async='migration out' phase='perform3'/><domain ", 1))
	same, err := m.readStatus(moving)
	require.NoError(t, err)
	assert.Same(t, other.domain, same.domain)
	broken := doc("/dev/vg/b")
	broken.XML = []byte(strings.Replace(string(broken.XML), "</domstatus>", "", 1))
	_, err = m.readStatus(broken)
	require.ErrorContains(t, err, "cannot read the disks of running guest vm1")
	m.forgetAdopted(guests.Snapshot{ByUUID: map[string]guests.Guest{uuid: {}}})
	assert.Len(t, m.parsed, 1)
	m.forgetAdopted(guests.Snapshot{})
	assert.Empty(t, m.parsed)
}
