package cluster

import (
	"encoding/json"
	"fmt"
	"net"
	"time"
)

// qmpQuit ends a machine through its monitor socket: at once for the system in it, while
// QEMU still closes its disk images in order. The protocol is in
// https://www.qemu.org/docs/master/interop/qmp-spec.html.
func qmpQuit(socket string) error {
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
	for _, command := range []string{"qmp_capabilities", "quit"} {
		if err := encoder.Encode(map[string]string{"execute": command}); err != nil {
			return fmt.Errorf("cannot write to the monitor: %w", err)
		}
		answer, err := next()
		if err != nil {
			return err
		}
		if answer.Error != nil {
			return fmt.Errorf("monitor refuses %s: %s", command, answer.Error.Desc)
		}
	}
	return nil
}
