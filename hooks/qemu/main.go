// Command qemu is virtlvm's libvirt hook, installed as the file /etc/libvirt/hooks/qemu
// (or under qemu.d beside it). libvirt runs it as
//
//	qemu GUEST OPERATION SUBOPERATION EXTRA <DOMAIN-XML
//
// It hands that to virtlvmd, waits for the verdict and exits. See package hook.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"virtlvm/hooks/qemu/internal/hook"
)

func main() {
	// A reader of our output that has gone must not kill us before the event is kept.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	os.Exit(hook.Run(ctx, hook.System()))
}
