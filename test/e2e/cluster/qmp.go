package cluster

import (
	"encoding/json"
	"fmt"
	"net"
	"time"
)

// qmpQuit ends a machine through its monitor socket: at once for the system in it, while
// QEMU still closes its disk images in order.
func qmpQuit(socket string) error { return qmp(socket, "quit", nil) }

// Stall makes the LUN of the shared volume group answer next to nothing, or lets it answer
// again: a read of sanlock's then takes half an hour.
func (h *Host) Stall(on bool) error {
	bps := 0 // no limit
	if on {
		bps = 512
	}
	return qmp(h.machine.path("qmp"), "block_set_io_throttle", map[string]any{
		"device": "san", "bps": bps, "bps_rd": 0, "bps_wr": 0, "iops": 0, "iops_rd": 0, "iops_wr": 0,
	})
}

// qmp runs one command on the monitor of a machine. The protocol is in
// https://www.qemu.org/docs/master/interop/qmp-spec.html.
func qmp(socket, command string, arguments map[string]any) error {
	conn, err := net.DialTimeout("unix", socket, 5*time.Second)
	if err != nil {
		return fmt.Errorf("cannot reach the monitor: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return fmt.Errorf("cannot reach the monitor: %w", err)
	}

	type message struct {
		Greeting json.RawMessage `json:"QMP"`
		Return   json.RawMessage `json:"return"`
		Error    *struct {
			Desc string `json:"desc"`
		} `json:"error"`
	}
	decoder := json.NewDecoder(conn)
	// next skips events, which may come at any time.
	next := func() (message, error) {
		for {
			var m message
			if err := decoder.Decode(&m); err != nil {
				return m, fmt.Errorf("cannot read from the monitor: %w", err)
			}
			if m.Greeting != nil || m.Return != nil || m.Error != nil {
				return m, nil
			}
		}
	}
	if _, err := next(); err != nil {
		return err
	}
	encoder := json.NewEncoder(conn)
	for _, execute := range []string{"qmp_capabilities", command} {
		request := map[string]any{"execute": execute}
		if execute == command && arguments != nil {
			request["arguments"] = arguments
		}
		if err := encoder.Encode(request); err != nil {
			return fmt.Errorf("cannot write to the monitor: %w", err)
		}
		answer, err := next()
		if err != nil {
			return err
		}
		if answer.Error != nil {
			return fmt.Errorf("monitor refuses %s: %s", execute, answer.Error.Desc)
		}
	}
	return nil
}
