package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"text/template"
)

// Disk is one disk of a guest.
type Disk struct {
	Type      string // "block" (default), "file" or "volume"
	Source    string // path; for "volume" the name of the volume
	Pool      string // for "volume"
	Format    string // "raw" (default) or "qcow2"
	Shareable bool
	ReadOnly  bool
	// Backing, when set, is written into the XML as <backingStore>, top down; otherwise
	// libvirt finds the chain in the qcow2 headers.
	Backing []Disk
}

// Guest is a virtual machine on a host: 48 MiB, no operating system.
type Guest struct {
	Name  string
	Disks []Disk
}

// UUID is the same on every host where the guest is defined.
func (g Guest) UUID() string {
	sum := sha256.Sum256([]byte("virtlvm-e2e " + g.Name))
	sum[6], sum[8] = sum[6]&0x0f|0x40, sum[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

var guestXML = template.Must(template.New("guest").Funcs(template.FuncMap{
	"target": func(i int) string { return "vd" + string(rune('a'+i)) },
	"first": func(disks []Disk) *Disk {
		if len(disks) == 0 {
			return nil
		}
		d := disks[0]
		d.Backing = disks[1:]
		return &d
	},
	"xml": func(s string) (string, error) {
		var b bytes.Buffer
		template.HTMLEscape(&b, []byte(s))
		return b.String(), nil
	},
	"type":   func(d Disk) string { return or(d.Type, "block") },
	"format": func(d Disk) string { return or(d.Format, "raw") },
}).Parse(`
{{- define "source" -}}
{{- $t := type . -}}
<source {{if eq $t "block"}}dev='{{xml .Source}}'{{else if eq $t "file"}}file='{{xml .Source}}'{{else}}pool='{{xml .Pool}}' volume='{{xml .Source}}'{{end}}/>
{{- end -}}
{{- define "backing" -}}
{{- with first . -}}
<backingStore type='{{type .}}'><format type='{{format .}}'/>{{template "source" .}}{{if .Backing}}{{template "backing" .Backing}}{{else}}<backingStore/>{{end}}</backingStore>
{{- end -}}
{{- end -}}
<domain type='qemu'>
  <name>{{xml .Name}}</name>
  <uuid>{{.UUID}}</uuid>
  <memory unit='MiB'>48</memory>
  <vcpu>1</vcpu>
  <os><type arch='x86_64' machine='pc'>hvm</type><boot dev='hd'/></os>
  <features><acpi/></features>
  <on_poweroff>destroy</on_poweroff>
  <on_reboot>restart</on_reboot>
  <on_crash>destroy</on_crash>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
{{- range $i, $d := .Disks}}
    <disk type='{{type $d}}' device='disk'>
      <driver name='qemu' type='{{format $d}}' cache='none'/>
      {{template "source" $d}}
      {{template "backing" $d.Backing}}
      <target dev='{{target $i}}' bus='virtio'/>
      {{- if .Shareable}}<shareable/>{{end}}{{if .ReadOnly}}<readonly/>{{end}}
    </disk>
{{- end}}
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
</domain>
`))

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// XML is the guest's libvirt definition.
func (g Guest) XML() (string, error) {
	var b strings.Builder
	if err := guestXML.Execute(&b, g); err != nil {
		return "", fmt.Errorf("cannot write the definition of %s: %w", g.Name, err)
	}
	return b.String(), nil
}

// Define makes the guest known to libvirt on the host.
func (h *Host) Define(ctx context.Context, g Guest) error {
	xml, err := g.XML()
	if err != nil {
		return err
	}
	r, err := h.RunInput(ctx, "virsh -q define /dev/stdin", strings.NewReader(xml))
	if err == nil && r.Exit != 0 {
		err = fmt.Errorf("cannot define %s on %s: %s", g.Name, h.Name, r.Output())
	}
	return err
}

// Virsh runs one virsh command about a guest; a refusal is in the Result.
func (h *Host) Virsh(ctx context.Context, args ...string) (Result, error) {
	words := []string{"virsh", "-q"}
	for _, a := range args {
		words = append(words, Quote(a))
	}
	return h.Run(ctx, strings.Join(words, " "))
}

// Guests lists the names of all defined or running guests on the host.
func (h *Host) Guests(ctx context.Context, running bool) ([]string, error) {
	what := "--all"
	if running {
		what = "--state-running"
	}
	out, err := h.Must(ctx, "virsh -q list --name "+what)
	return strings.Fields(out), err
}

// RemoveGuest destroys and undefines a guest where it is; one that is not there is fine.
func (h *Host) RemoveGuest(ctx context.Context, name string) error {
	_, err := h.Run(ctx, fmt.Sprintf("virsh -q destroy %[1]s; virsh -q undefine %[1]s", Quote(name)))
	return err
}
