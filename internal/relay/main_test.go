package relay

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// The test binary is also the program at the other end: started with this variable it is
// a relay to that socket.
const socketVariable = "RELAY_TEST_SOCKET"

func TestMain(m *testing.M) {
	socket := os.Getenv(socketVariable)
	if socket == "" {
		os.Exit(m.Run())
	}
	err := Run(context.Background(), os.Stdin, os.Stdout, Options{Socket: socket, Peer: os.Getenv("RELAY_TEST_PEER")})
	if err != nil {
		fmt.Fprintln(os.Stderr, "relay:", err)
		os.Exit(3)
	}
}
