package conformance

import (
	"bytes"
	"context"
	"strings"

	"virtlvm/test/san"
)

// Fake is a Shell on the fake SAN. Command lines are split at blanks.
type Fake struct{ SAN *san.SAN }

// fakePID opens devices.
const fakePID = 4242

// Run is Shell's.
func (f Fake) Run(ctx context.Context, host, commandLine string) (stdout, stderr string, exit int, err error) {
	h, err := f.SAN.Host(host)
	if err != nil {
		return "", "", 0, err
	}
	var out, errOut bytes.Buffer
	code := h.Exec(ctx, strings.Fields(commandLine), &out, &errOut)
	return out.String(), errOut.String(), code, nil
}

// Open is Opener's.
func (f Fake) Open(_ context.Context, host, volume string) error {
	h, err := f.SAN.Host(host)
	if err != nil {
		return err
	}
	vg, lv, _ := strings.Cut(volume, "/")
	return h.Open(vg, lv, fakePID)
}

// Close is Opener's; an empty volume is none.
func (f Fake) Close(_ context.Context, host, volume string) error {
	h, err := f.SAN.Host(host)
	if err != nil || volume == "" {
		return err
	}
	vg, lv, _ := strings.Cut(volume, "/")
	return h.CloseVolume(vg, lv, fakePID)
}
