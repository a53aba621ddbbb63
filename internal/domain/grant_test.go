package domain

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGrant(t *testing.T) {
	g := Grant{ID: "g-1", From: "kvm-a"}
	const element = "<virtlvm:grant xmlns:virtlvm='urn:virtlvm:1' id='g-1' from='kvm-a'/>"
	for name, c := range map[string]struct{ doc, want string }{
		"no metadata": {
			"<domain><name>vm1</name><uuid>u</uuid></domain>",
			"<domain><name>vm1</name><metadata>" + element + "</metadata><uuid>u</uuid></domain>",
		},
		"empty metadata": {
			"<domain><metadata/><name>vm1</name></domain>",
			"<domain><metadata>" + element + "</metadata><name>vm1</name></domain>",
		},
		"others' metadata stays as it is": {
			"<domain><name>vm1</name><metadata>\n  <x:y xmlns:x='z'>&lt;</x:y> </metadata></domain>",
			"<domain><name>vm1</name><metadata>" + element + "\n  <x:y xmlns:x='z'>&lt;</x:y> </metadata></domain>",
		},
		"an old grant goes": {
			"<domain><name>vm1</name><metadata><v:grant xmlns:v='urn:virtlvm:1' id='old' from='kvm-c'></v:grant><a/></metadata></domain>",
			"<domain><name>vm1</name><metadata>" + element + "<a/></metadata></domain>",
		},
		"another's element of that name stays": {
			"<domain><name>vm1</name><metadata><grant xmlns='urn:else' id='x'/></metadata></domain>",
			"<domain><name>vm1</name><metadata>" + element + "<grant xmlns='urn:else' id='x'/></metadata></domain>",
		},
	} {
		out, err := WithGrant([]byte(c.doc), g)
		require.NoError(t, err, name)
		assert.Equal(t, c.want, string(out), name)
		found, ok, err := GrantOf(out)
		require.NoError(t, err)
		assert.True(t, ok, name)
		assert.Equal(t, g, found, name)
	}
}

func TestGrantIsEscaped(t *testing.T) {
	g := Grant{ID: `'<&">`, From: "a'b"}
	out, err := WithGrant([]byte("<domain><name>vm1</name></domain>"), g)
	require.NoError(t, err)
	found, ok, err := GrantOf(out)
	require.NoError(t, err)
	assert.True(t, ok)
	assert.Equal(t, g, found)
}

func TestGrantRefuses(t *testing.T) {
	for _, doc := range []string{"", "<domain>", "<domain><uuid>u</uuid></domain>", "<!DOCTYPE d><domain><name>x</name></domain>"} {
		_, err := WithGrant([]byte(doc), Grant{})
		assert.Error(t, err, doc)
		_, _, err = GrantOf([]byte(doc))
		assert.Error(t, err, doc)
	}
}

// What libvirt really sends stays a domain with the same disks.
func TestGrantInRealDocuments(t *testing.T) {
	files, err := filepath.Glob("../../test/testdata/hooks/libvirt-11.3/*/*.xml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		doc, err := os.ReadFile(file)
		require.NoError(t, err)
		before, err := Parse(doc)
		require.NoError(t, err)
		_, ok, err := GrantOf(doc)
		require.NoError(t, err)
		assert.False(t, ok, file)
		out, err := WithGrant(doc, Grant{ID: "g", From: "kvm-a"})
		require.NoError(t, err)
		after, err := Parse(out)
		require.NoError(t, err, file)
		assert.Equal(t, before, after, file)
	}
}
