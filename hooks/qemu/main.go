// Command qemu is virtlvm's libvirt hook, installed as the file /etc/libvirt/hooks/qemu
// (or under qemu.d beside it). libvirt runs it as
//
//	qemu GUEST OPERATION SUBOPERATION EXTRA <DOMAIN-XML
//
// It hands that to virtlvmd, waits for the verdict and exits. See package hook.
package main

import (
	"os"

	"virtlvm/hooks/qemu/internal/hook"
)

func main() { os.Exit(hook.Run(hook.System())) }
