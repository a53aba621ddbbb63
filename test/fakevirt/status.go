package fakevirt

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// Job elements of a status file as libvirt 11.3 writes them; none where it is idle. See
// job.go for those of migrations.
const (
	jobNone    = ""
	jobStart   = "<job type='none' async='start' flags='0x0' asyncStarted='1795998646970'/>"
	jobDestroy = "<job type='destroy' async='none'/>"
)

// status is the content of a status file.
type status struct {
	State, Reason string
	PID           int
	Job           string
	Domain        *libvirtxml.Domain
	OldQEMU       bool // see Options.OldQEMU
}

// dropCache is QEMU's ability to forget what is cached of a disk, since 4.0.
const dropCache = "<flag name='migration-file-drop-cache'/>"

// statusDocument is the file of libvirt 11.3 with a shortened list of capabilities.
const statusDocument = `<!--
WARNING: THIS IS AN AUTO-GENERATED FILE. CHANGES TO IT ARE LIKELY TO BE
OVERWRITTEN AND LOST. Changes to this xml configuration should be made using:
  virsh edit %[1]s
or other application using the libvirt API.
-->

<domstatus state='%[2]s' reason='%[3]s' pid='%[4]d'>
  <taint flag='high-privileges'/>
  <monitor path='/var/lib/libvirt/qemu/domain-%[5]d-%[6]s/monitor.sock' type='unix'/>
  <namespaces>
    <mount/>
  </namespaces>
  <vcpus>
    <vcpu id='0' pid='%[7]d'/>
  </vcpus>
  <qemuCaps>
    <flag name='kvm'/>
    <flag name='virtio-scsi-pci'/>
%[11]s    <flag name='blockdev.nbd.tls-hostname'/>
    <flag name='virtio-scsi.iothread-mapping'/>
  </qemuCaps>
%[8]s  <devices>
%[9]s  </devices>
  <libDir path='/var/lib/libvirt/qemu/domain-%[5]d-%[6]s'/>
  <channelTargetDir path='/run/libvirt/qemu/channel/%[5]d-%[6]s'/>
  <memoryBackingDir path='/var/lib/libvirt/qemu/ram/%[5]d-%[6]s'/>
  <chardevStdioLogd/>
  <rememberOwner/>
  <nodename index='1'/>
  <fdset index='0'/>
  <blockjobs active='%[12]s'/>
  <agentTimeout>-2</agentTimeout>
%[10]s</domstatus>
`

// sourceWithIndex is a disk's <source> that libvirt adds its private data to.
var sourceWithIndex = regexp.MustCompile(`(?m)^( *)(<source [^>]*index="(\d+)"[^>]*>)</source>$`)

// private adds libvirt's private data to a domain, and moves it to the right.
func private(doc string) string {
	doc = sourceWithIndex.ReplaceAllString(doc, `$1$2
$1  <privateData>
$1    <nodenames>
$1      <nodename type='storage' name='libvirt-$3-storage'/>
$1    </nodenames>
$1  </privateData>
$1</source>`)
	return "  " + strings.TrimSuffix(strings.ReplaceAll(doc, "\n", "\n  "), "  ")
}

func (s status) document(docs *Documents) []byte {
	d := s.Domain
	id := 0
	if d.ID != nil {
		id = *d.ID
	}
	job := ""
	if s.Job != "" {
		job = "  " + s.Job + "\n"
	}
	devices, blockJobs := "", "no"
	for _, disk := range disksOf(d) {
		if disk.Mirror != nil {
			blockJobs = "yes"
		}
		if disk.Alias != nil {
			devices += "    <device alias='" + escape(disk.Alias.Name) + "'/>\n"
		}
	}
	domain := docs.inStatus(docs.xmlOf(d), private)
	// A comment must not hold "--", whatever the name.
	comment := strings.ReplaceAll(d.Name, "--", "- -")
	caps := ""
	if !s.OldQEMU {
		caps = "    " + dropCache + "\n"
	}
	return fmt.Appendf(nil, statusDocument, comment, s.State, s.Reason, s.PID, id, escape(d.Name), s.PID+7, job, devices, domain, caps, blockJobs)
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder never fails
	return b.String()
}

func (h *Host) statusPath(name string) string { return filepath.Join(h.o.RunDir, name+".xml") }

func (h *Host) writeStatus(s status) error {
	s.OldQEMU = h.o.OldQEMU
	err := writeFile(h.statusPath(s.Domain.Name), s.document(h.o.Documents))
	if err != nil && h.dead() {
		return ErrHostGone
	}
	if err != nil {
		return fmt.Errorf("cannot write status file: %w", err)
	}
	if h.o.Changed != nil {
		async, _ := s.async()
		h.o.Changed(Change{Guest: s.Domain.Name, UUID: s.Domain.UUID, State: s.State, Async: async, PID: s.PID})
	}
	return nil
}

func (h *Host) removeStatus(name string) error {
	if err := os.Remove(h.statusPath(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove status file: %w", err)
	}
	if h.o.Changed != nil {
		h.o.Changed(Change{Guest: name})
	}
	return nil
}

// readStatus reads a guest's status file; found is false where it has none.
func (h *Host) readStatus(name string) (s status, found bool, err error) {
	data, err := os.ReadFile(h.statusPath(name))
	if errors.Is(err, fs.ErrNotExist) {
		return s, false, nil
	}
	if err != nil {
		return s, false, fmt.Errorf("cannot read status file: %w", err)
	}
	root, err := rootOf(data)
	if err != nil {
		return s, false, fmt.Errorf("cannot read status file of %s: %w", name, err)
	}
	doc := string(data)
	begin, end := strings.Index(doc, "  <domain "), strings.LastIndex(doc, "</domain>")
	if begin < 0 || end < begin {
		return s, false, fmt.Errorf("cannot read status file of %s: no domain in it", name)
	}
	s = status{
		State: root["state"], Reason: root["reason"], PID: pidOf(root),
		Job: jobOf(doc[:begin]),
	}
	if s.Domain, err = h.o.Documents.read(doc[begin : end+len("</domain>")]); err != nil {
		return s, false, fmt.Errorf("cannot read status file of %s: %w", name, err)
	}
	return s, true, nil
}

// rootOf are the attributes of the root element. The rest is not read: a simulation does so
// very often.
func rootOf(data []byte) (map[string]string, error) {
	d := xml.NewDecoder(bytes.NewReader(data))
	for {
		token, err := d.RawToken()
		if err != nil {
			return nil, err
		}
		if root, ok := token.(xml.StartElement); ok {
			if root.Name.Local != "domstatus" {
				return nil, fmt.Errorf("expected element type <domstatus> but have <%s>", root.Name.Local)
			}
			all := map[string]string{}
			for _, a := range root.Attr {
				all[a.Name.Local] = a.Value
			}
			return all, nil
		}
	}
}

// pidOf is 0 where there is none.
func pidOf(root map[string]string) int {
	pid, _ := strconv.Atoi(root["pid"])
	return pid
}

// hasQEMU: the guest's status file names a QEMU that is alive. false: it is not known.
func (h *Host) hasQEMU(name string) bool {
	data, err := os.ReadFile(h.statusPath(name))
	if err != nil {
		return false
	}
	root, err := rootOf(data)
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(data), "<uuid>")
	uuid, _, found := strings.Cut(rest, "</uuid>")
	return found && h.o.Launcher.Alive(pidOf(root), uuid)
}
