package peer

import (
	"context"
	"fmt"
	"os"
	"testing"

	"virtlvm/internal/relay"
)

// The test binary is also `virtlvm relay` on the other host: started with this variable it
// is a relay to that socket.
const socketVariable = "PEER_TEST_SOCKET"

func TestMain(m *testing.M) {
	socket := os.Getenv(socketVariable)
	if socket == "" {
		os.Exit(m.Run())
	}
	o := relay.Options{Socket: socket, Peer: os.Getenv("PEER_TEST_NAME")}
	if err := relay.Run(context.Background(), os.Stdin, os.Stdout, o); err != nil {
		fmt.Fprintln(os.Stderr, "virtlvm:", err)
		os.Exit(3)
	}
}
