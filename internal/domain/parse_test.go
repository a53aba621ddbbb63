package domain

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"virtlvm/internal/model"
)

const (
	testdata = "../../test/testdata"
	uuid     = "cc05373d-88fd-4189-a531-580c9d8e5417"
)

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join(testdata, name))
	require.NoError(t, err)
	return doc
}

// withDisks is a domain document with the given content of <devices>.
func withDisks(devices string) string {
	return "<domain type='kvm'><name>vm1</name><uuid>" + uuid + "</uuid><devices>" + devices + "</devices></domain>"
}

func TestParseFixtures(t *testing.T) {
	lv1 := Disk{
		Target: "vda", Role: model.RoleWritable, Cache: "none",
		Source: Source{Path: "/dev/vg_san/lv1", Format: "raw"},
	}
	live := lv1
	live.ChainEnd = true
	top := Disk{
		Target: "vda", Role: model.RoleWritable, Cache: "none",
		Source: Source{Path: "/dev/mapper/vg_san-top", Format: "qcow2"},
	}
	chain := top
	chain.ChainEnd = true
	chain.Backing = []Source{{Path: "/dev/vg_san/base", Format: "qcow2"}}

	dir := "hooks/libvirt-11.3/"
	for name, want := range map[string]Disk{
		dir + "kvm-a/01-vm1-prepare-begin.xml":                              lv1,
		dir + "kvm-a/03-vm1-started-begin.xml":                              live,
		dir + "kvm-b/01-vm1-migrate-begin.xml":                              lv1,
		dir + "kvm-b/05-vm-qcow-prepare-begin.xml":                          top,
		dir + "kvm-b/06-vm-qcow-start-begin.xml":                            chain,
		dir + "kvm-b/07-vm-qcow-started-begin.xml":                          chain,
		dir + "kvm-b/09-vm-qcow-release-end-destroyed.xml":                  top,
		dir + "migration-aborted-destination/06-vm1-release-end-failed.xml": lv1,
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Parse(fixture(t, name))
			require.NoError(t, err)
			assert.Equal(t, []Disk{want}, d.Disks, "the empty CD-ROM drive is left out")
			assert.Contains(t, name, d.Name)
		})
	}

	t.Run("status", func(t *testing.T) {
		d, err := ParseStatus(fixture(t, "status/libvirt-11.3-vm1-running.xml"))
		require.NoError(t, err)
		assert.Equal(t, &Domain{
			Name: "vm1", UUID: "11111111-2222-3333-4444-555555555555", Disks: []Disk{live},
		}, d)
	})
}

// Every captured document must be readable, whatever the call.
func TestParseAllFixtures(t *testing.T) {
	files, err := filepath.Glob(testdata + "/hooks/*/*/*.xml")
	require.NoError(t, err)
	require.Greater(t, len(files), 15)
	for _, f := range files {
		doc, err := os.ReadFile(f)
		require.NoError(t, err)
		d, err := Parse(doc)
		require.NoError(t, err, f)
		assert.Len(t, d.Disks, 1, f)
	}
}

func TestParseNames(t *testing.T) {
	for _, name := range []string{
		"two words", " leading", `say "hi"`, "it's", "a\nb", "-x", "../etc/passwd", "a/b", "vm&<1>", "ünï", "  ",
	} {
		t.Run(name, func(t *testing.T) {
			doc := withDisks("")
			doc = strings.Replace(doc, "vm1", strings.NewReplacer("&", "&amp;", "<", "&lt;").Replace(name), 1)
			d, err := Parse([]byte(doc))
			require.NoError(t, err)
			assert.Equal(t, name, d.Name)

			_, err = Parse([]byte(strings.Replace(doc, uuid, "?", 1)))
			require.ErrorContains(t, err, fmt.Sprintf("guest %q", name))
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}

func TestParseUUID(t *testing.T) {
	d, err := Parse([]byte(strings.Replace(withDisks(""), uuid, "\n "+strings.ToUpper(uuid)+" ", 1)))
	require.NoError(t, err)
	assert.Equal(t, uuid, d.UUID)
}

func TestParseRefuses(t *testing.T) {
	good := withDisks("")
	bomb := func(n int) string {
		return strings.Replace(good, "<devices>", strings.Repeat("<a>", n)+strings.Repeat("</a>", n)+"<devices>", 1)
	}
	// Far deeper than any stack would take, were it not refused.
	flood := strings.Repeat("<a>", 1<<17)
	for name, c := range map[string]struct{ doc, want string }{
		"empty":             {"", "empty"},
		"white space":       {" \n", "empty"},
		"no element":        {"<!-- nothing -->", "no element"},
		"text":              {"domain", "outside of its root"},
		"truncated in tag":  {good[:len(good)-4], "unexpected EOF"},
		"truncated in name": {good[:25], "unexpected EOF"},
		"truncated half":    {good[:len(good)/2], "unexpected EOF"},
		"too large":         {good + strings.Repeat(" ", maxBytes), "more than 33554432"},
		"not UTF-8":         {strings.Replace(good, "vm1", "vm\xff", 1), "not UTF-8"},
		"UTF-16":            {"\xff\xfe<\x00d\x00", "not UTF-8"},
		"latin-1 declared":  {"<?xml version='1.0' encoding='ISO-8859-1'?>" + good, "encoding"},
		"doctype":           {"<!DOCTYPE domain>" + good, "document types and entities"},
		"entity definition": {"<!DOCTYPE d [<!ENTITY a 'b'>]>" + good, "document types and entities"},
		"doctype inside":    {strings.Replace(good, "<devices>", "<!DOCTYPE d><devices>", 1), "document types and entities"},
		"entity inside":     {strings.Replace(good, "<devices>", "<!ENTITY a 'b'><devices>", 1), "document types and entities"},
		"entity use":        {strings.Replace(good, "vm1", "&a;", 1), "invalid character entity"},
		"nested too deep":   {bomb(maxNesting), "nested deeper"},
		"flood":             {"<domain>" + flood, "nested deeper"},
		"flood in disk":     {"<domain><devices><disk>" + flood, "nested deeper"},
		"other root":        {"<network><name>x</name></network>", "its root is <network>"},
		"root of namespace": {"<x:domain xmlns:x='u'><name>x</name></x:domain>", "its root is"},
		"status as domain":  {"<domstatus>" + good + "</domstatus>", "its root is <domstatus>"},
		"two roots":         {good + good, "second root"},
		"text behind":       {good + "x", "outside of its root"},
		"wrong end":         {strings.Replace(good, "</devices>", "</device>", 1), "closed by"},
		"no name":           {strings.Replace(good, "<name>vm1</name>", "", 1), "no <name>"},
		"empty name":        {strings.Replace(good, "vm1", "", 1), "no <name>"},
		"two names":         {strings.Replace(good, "<devices>", "<name>b</name><devices>", 1), "more than one <name>"},
		"no uuid":           {strings.Replace(good, "<uuid>"+uuid+"</uuid>", "", 1), "no <uuid>"},
		"bad uuid":          {strings.Replace(good, "cc05", "cg05", 1), "not a UUID"},
		"short uuid":        {strings.Replace(good, "cc05", "c05", 1), "not a UUID"},
		"uuid of dashes":    {strings.Replace(good, uuid, strings.Repeat("-", 36), 1), "not a UUID"},
		"uuid misdashed":    {strings.Replace(good, "cc05373d-8", "cc05373-d8", 1), "not a UUID"},
		"two uuids":         {strings.Replace(good, "<devices>", "<uuid>"+uuid+"</uuid><devices>", 1), "more than one <uuid>"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(c.doc))
			require.ErrorContains(t, err, c.want)
			assert.True(t, strings.HasPrefix(err.Error(), "cannot read <domain> document"), err)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}

func TestParseStatusRefuses(t *testing.T) {
	good := withDisks("")
	for name, c := range map[string]struct{ doc, want string }{
		"domain":      {good, "its root is <domain>"},
		"no domain":   {"<domstatus state='running'/>", "no <domain>"},
		"two domains": {"<domstatus>" + good + good + "</domstatus>", "more than one <domain>"},
		"unfinished":  {"<domstatus>" + good, "unexpected EOF"},
		"nameless":    {"<domstatus><domain/></domstatus>", "no <name>"},
		"deeper":      {"<domstatus><job>" + good + "</job></domstatus>", "no <domain>"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseStatus([]byte(c.doc))
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestParseLargeDocument(t *testing.T) {
	var b strings.Builder
	for b.Len() < 10<<20 {
		b.WriteString("<m:note xmlns:m='urn:x' a='1'>text of an application</m:note>\n")
	}
	doc := strings.Replace(withDisks(disks(100)), "<devices>", "<metadata>"+b.String()+"</metadata><devices>", 1)
	d, err := Parse([]byte(doc))
	require.NoError(t, err)
	require.Len(t, d.Disks, 100)
	assert.Equal(t, "/dev/vg_san/lv99", d.Disks[99].Source.Path)
}

func disks(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "<disk type='block' device='disk'><driver name='qemu' type='raw'/>"+
			"<source dev='/dev/vg_san/lv%d'/><target dev='vd%d'/></disk>", i, i)
	}
	return b.String()
}

// Only ./devices/disk is a disk: applications put whole domains into <metadata>.
func TestParseIgnoresOtherElements(t *testing.T) {
	disk := disks(1)
	doc := "\ufeff<?xml version='1.0' encoding='utf-8'?><!-- <!DOCTYPE x> -->" + strings.Replace(withDisks(
		"<x:disk xmlns:x='u'><source dev='/dev/vg/other'/></x:disk>"+
			"<lease><lockspace>ls</lockspace><key>vda</key><target path='/dev/vg/lease'/></lease>"+
			"<hostdev mode='subsystem' type='scsi'><source><adapter name='scsi_host0'/></source></hostdev>"+
			"<controller><disk type='block'><source dev='/dev/vg/no'/></disk></controller>"+disk),
		"<devices>", "<metadata><a:b xmlns:a='u'/><domain><devices>"+disk+"</devices></domain></metadata><devices>", 1) +
		"<!-- end -->\n"
	d, err := Parse([]byte(doc))
	require.NoError(t, err)
	require.Len(t, d.Disks, 1)
	assert.Equal(t, "/dev/vg_san/lv0", d.Disks[0].Source.Path)
}

func TestUUID(t *testing.T) {
	const uuid = "11111111-2222-3333-4444-55555555AAAA"
	for _, tt := range []struct{ name, doc, want, err string }{
		{"before the rest", "<domain><name>a</name><uuid>" + uuid + "</uuid><devices>not closed", strings.ToLower(uuid), ""},
		{"of the domain itself", "<domain><metadata><uuid>x</uuid></metadata><uuid> " + uuid + " </uuid></domain>", strings.ToLower(uuid), ""},
		{"none", "<domain><name>a</name></domain>", "", "it has none"},
		{"not a uuid", "<domain><uuid>1-2</uuid></domain>", "", "it has none"},
		{"of somebody's extension", "<domain><x:uuid xmlns:x='urn:x'>" + uuid + "</x:uuid></domain>", "", "it has none"},
		{"empty", " ", "", "empty"},
		{"malformed", "<domain><name>a</uuid>", "", "line 1"},
		{"with a document type", "<!DOCTYPE domain><domain><uuid>" + uuid + "</uuid></domain>", "", "document types"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := UUID([]byte(tt.doc))
			assert.Equal(t, tt.want, got)
			if tt.err == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.err)
		})
	}
}
