package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"virtlvm/internal/api"
)

// guest is a domain as libvirt hands it to the hook.
type guest struct {
	name string
	xml  []byte
	lvs  []string // its volumes, "vg/lv"
}

// fixture is a domain XML that libvirt 11.3 gave to a hook, with one disk.
const fixture = "test/testdata/hooks/libvirt-11.3/kvm-a/01-vm1-prepare-begin.xml"

// newGuest puts other disks into the fixture.
func (s *stage) newGuest(name string, number int, disks ...string) (*guest, error) {
	doc, err := os.ReadFile(filepath.Join(s.repo, fixture))
	if err != nil {
		return nil, err
	}
	before, rest, found := bytes.Cut(doc, []byte("    <disk "))
	_, after, end := bytes.Cut(rest, []byte("</disk>\n"))
	if !found || !end {
		return nil, fmt.Errorf("%s has no disk", fixture)
	}
	doc = slices.Concat(before, []byte(strings.Join(disks, "")), after)
	doc = bytes.Replace(doc, []byte("<name>vm1<"), []byte("<name>"+name+"<"), 1)
	doc = bytes.Replace(doc, []byte("11111111-2222-3333-4444-555555555555"), fmt.Appendf(nil, "11111111-2222-4333-8444-%012d", number), 1)
	return &guest{name: name, xml: doc}, nil
}

// disk is one <disk>; n makes its target name.
func disk(kind, path string, n int) string {
	attribute := map[string]string{"block": "dev", "file": "file"}[kind]
	target := string(rune('a' + n%26))
	if n >= 26 {
		target = string(rune('a'+n/26-1)) + target
	}
	return fmt.Sprintf(`    <disk type='%s' device='disk'>
      <driver name='qemu' type='raw' cache='none' io='native'/>
      <source %s='%s'/>
      <target dev='vd%s' bus='virtio'/>
      <address type='pci' domain='0x0000' bus='0x%02x' slot='0x%02x' function='0x0'/>
    </disk>
`, kind, attribute, path, target, n/28, 2+n%28)
}

// hook runs a hook as libvirt does and returns what that took. It is an error if it does
// not allow what is asked.
func (h *host) hook(ctx context.Context, program string, g *guest, op, subOp, extra string) (cost, error) {
	cmd := exec.CommandContext(ctx, program, g.name, op, subOp, extra)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(g.xml), &out, &errs // pipes, as libvirt's
	cmd.Env, cmd.Dir = append(h.env, "PLAIN_HOOK_READER="+xmlReader()), "/"
	began := time.Now()
	err := cmd.Run()
	took := time.Since(began)
	if err != nil {
		return cost{}, fmt.Errorf("%s of %s with %s on %s: %w: %s", op, g.name, filepath.Base(program), h.san.Name(), err, errs.Bytes())
	}
	return costOf(took, cmd.ProcessState), nil
}

// xmlReader is what the bash hook reads XML with.
func xmlReader() string {
	if _, err := exec.LookPath("xmllint"); err != nil {
		return "sed"
	}
	return "xmllint"
}

// isOn checks that a hook has done its work: every volume locked exclusively and active.
func (h *host) isOn(g *guest) error {
	for _, name := range g.lvs {
		vg, lv, _ := strings.Cut(name, "/")
		if mode := h.san.LockMode(vg, lv); mode != "ex" || !h.san.Active(vg, lv) {
			return fmt.Errorf("%s is not active exclusively on %s after the hook: lock %s", name, h.san.Name(), mode)
		}
	}
	return nil
}

// direct runs command lines one after the other and returns what they took: what LVM's
// tools cost whoever runs them. Output goes to a file, as virtlvmd lets them write.
func (h *host) direct(ctx context.Context, lines [][]string) (all cost, err error) {
	out, err := os.OpenFile(h.path("run/bench.out"), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return cost{}, err
	}
	defer func() { _ = out.Close() }()
	for _, argv := range lines {
		cmd := exec.CommandContext(ctx, filepath.Join(h.tools.dir, argv[0]), argv[1:]...)
		cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = h.env, "/", out, out
		began := time.Now()
		if err := cmd.Run(); err != nil {
			text, _ := os.ReadFile(out.Name())
			return cost{}, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, text)
		}
		all = all.plus(costOf(time.Since(began), cmd.ProcessState))
	}
	return all, nil
}

// off deactivates a guest's volumes and takes the time of that from nobody.
func (h *host) off(ctx context.Context, g *guest) error {
	if len(g.lvs) == 0 {
		return nil
	}
	_, err := h.direct(ctx, [][]string{append([]string{"lvchange", "-an"}, g.lvs...)})
	return err
}

// ranFor are the command lines that virtlvmd has run for the newest hook call, in their
// order: those that looked are written to the journal when the call ends.
func (h *host) ranFor(ctx context.Context) ([][]string, error) {
	commands, err := h.lastCall(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot read from the journal what a hook call has run: %w", err)
	}
	slices.SortFunc(commands, func(a, b api.Command) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return int(a.ID - b.ID)
	})
	var lines [][]string
	for _, c := range commands {
		if c.State != "COMPLETED" {
			return nil, fmt.Errorf("%s ended as %s: %s", strings.Join(c.Argv, " "), c.State, c.Error)
		}
		lines = append(lines, c.Argv)
	}
	return lines, nil
}
