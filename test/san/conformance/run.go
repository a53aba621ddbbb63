package conformance

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// runner is one run of the list.
type runner struct {
	sh   Shell
	opt  Options
	norm *normalizer
	done Transcript
}

// real is the real name of a host of steps.txt.
func (r *runner) real(host string) string {
	switch host {
	case "kvm-a":
		return r.opt.Hosts[0]
	case "kvm-b":
		return r.opt.Hosts[1]
	}
	return host
}

func (r *runner) run(ctx context.Context, host, cmd string) (stdout, stderr string, exit int, err error) {
	stdout, stderr, exit, err = r.sh.Run(ctx, r.real(host), cmd)
	if err != nil {
		return "", "", 0, fmt.Errorf("cannot run %q on %s: %w", cmd, r.real(host), err)
	}
	return stdout, stderr, exit, nil
}

func (r *runner) step(ctx context.Context, s step) error {
	if r.opt.Log != nil {
		r.opt.Log(s.kind + " " + s.host + "$ " + s.cmd)
	}
	switch s.kind {
	case "open":
		return r.open(ctx, s.host, s.cmd)
	case "close":
		return r.close(ctx, s.host, s.cmd)
	}
	cmd, err := r.expand(ctx, s.host, s.cmd)
	if err != nil {
		return err
	}
	stdout, stderr, exit, err := r.run(ctx, s.host, cmd)
	if err != nil || s.kind == "quiet" {
		return err
	}
	if err := r.learn(ctx, s.host); err != nil {
		return err
	}
	for i, name := range []string{"kvm-a", "kvm-b"} {
		stdout = strings.ReplaceAll(stdout, r.opt.Hosts[i], name)
		stderr = strings.ReplaceAll(stderr, r.opt.Hosts[i], name)
	}
	r.done = append(r.done, Result{
		Line: s.line, Host: s.host, Cmd: s.cmd, Want: s.want,
		Got: Outcome{Exit: exit, Stdout: r.norm.lines(stdout), Stderr: r.norm.lines(stderr)},
	})
	return nil
}

var offsetVar = regexp.MustCompile(`\{offset ([a-z0-9]+)\}`)

// expand puts the lease's offset in place of {offset LV}.
func (r *runner) expand(ctx context.Context, host, cmd string) (string, error) {
	m := offsetVar.FindStringSubmatch(cmd)
	if m == nil {
		return cmd, nil
	}
	out, stderr, exit, err := r.run(ctx, host, "lvs --noheadings -o lv_lockargs vg_san/"+m[1])
	if err != nil {
		return "", err
	}
	args := strings.Split(strings.TrimSpace(out), ":")
	if exit != 0 || len(args) != 2 {
		return "", fmt.Errorf("cannot find the lease of %s: %q %s", m[1], out, stderr)
	}
	return strings.Replace(cmd, m[0], args[1], 1), nil
}

// learn asks for the uuids of the VG's volumes, so that the normalizer can name them.
func (r *runner) learn(ctx context.Context, host string) error {
	out, stderr, exit, err := r.run(ctx, host, "lvs -a --noheadings --separator , -o lv_name,lv_uuid,vg_name,vg_uuid vg_san")
	if err != nil {
		return err
	}
	if exit != 0 {
		return fmt.Errorf("cannot list the volumes: %s", stderr)
	}
	for _, l := range strings.Split(out, "\n") {
		if f := strings.Split(strings.TrimSpace(l), ","); len(f) == 4 {
			r.norm.name(f[1], strings.Trim(f[0], "[]"))
			r.norm.name(f[3], f[2])
		}
	}
	return nil
}

// clean removes what a run makes, wherever it is active.
func (r *runner) clean(ctx context.Context) error {
	for _, host := range []string{"kvm-a", "kvm-b"} {
		if err := r.close(ctx, host, ""); err != nil {
			return err
		}
	}
	for _, host := range []string{"kvm-a", "kvm-b"} {
		out, _, _, err := r.run(ctx, host, "lvs --noheadings -o lv_name vg_san")
		if err != nil {
			return err
		}
		var mine []string
		for _, name := range strings.Fields(out) {
			if strings.HasPrefix(name, "conf") {
				mine = append(mine, "vg_san/"+name)
			}
		}
		if len(mine) == 0 {
			continue
		}
		other := map[string]string{"kvm-a": "kvm-b", "kvm-b": "kvm-a"}[host]
		all := strings.Join(mine, " ")
		for _, c := range [][2]string{{other, "lvchange -y -an " + all}, {host, "lvremove -y " + all}} {
			if _, _, _, err := r.run(ctx, c[0], c[1]); err != nil {
				return err
			}
		}
	}
	return nil
}

const pidFile = "/run/conformance-open.pid"

// open keeps a device open until close; one on a host at a time.
func (r *runner) open(ctx context.Context, host, volume string) error {
	if o, ok := r.sh.(Opener); ok {
		return o.Open(ctx, r.real(host), volume)
	}
	_, stderr, exit, err := r.run(ctx, host, "setsid sleep 900 </dev/"+volume+" >/dev/null 2>&1 & echo $! >"+pidFile+"; sleep 1; kill -0 $(cat "+pidFile+")")
	if err == nil && exit != 0 {
		err = errors.New("cannot open " + volume + ": " + stderr)
	}
	return err
}

func (r *runner) close(ctx context.Context, host, volume string) error {
	if o, ok := r.sh.(Opener); ok {
		return o.Close(ctx, r.real(host), volume)
	}
	_, _, _, err := r.run(ctx, host, "test ! -e "+pidFile+" || { kill $(cat "+pidFile+"); rm "+pidFile+"; sleep 1; }")
	return err
}
