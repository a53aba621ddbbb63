package cluster

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestChildStop(t *testing.T) {
	l := newLauncher()
	obedient, err := l.start(exec.Command("sleep", "60"))
	require.NoError(t, err)
	assert.False(t, obedient.ended())
	require.NoError(t, obedient.stop(5*time.Second))
	assert.True(t, obedient.ended())
	require.NoError(t, obedient.stop(0), "stopping twice is fine")

	stubborn := exec.Command("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
	out, err := stubborn.StdoutPipe()
	require.NoError(t, err)
	c, err := l.start(stubborn)
	require.NoError(t, err)
	_, err = out.Read(make([]byte, 6))
	require.NoError(t, err)
	require.NoError(t, c.stop(100*time.Millisecond))
	assert.Equal(t, syscall.SIGKILL, c.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())

	_, err = l.start(exec.Command("/no/such/program"))
	require.ErrorContains(t, err, "cannot start")
}

// The child of a killed process must not live on.
func TestChildDiesWithParent(t *testing.T) {
	if file := os.Getenv("CLUSTER_TEST_PARENT"); file != "" {
		c, err := newLauncher().start(exec.Command("sleep", "60"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, []byte(strconv.Itoa(c.cmd.Process.Pid)), 0o600))
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGKILL))
		return
	}
	file := filepath.Join(t.TempDir(), "pid")
	parent := exec.Command(os.Args[0], "-test.run=^TestChildDiesWithParent$")
	parent.Env = append(os.Environ(), "CLUSTER_TEST_PARENT="+file)
	require.Error(t, parent.Run())
	pid, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile("/proc/" + string(pid) + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	}, 10*time.Second, 20*time.Millisecond)
}

func TestQMP(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "qmp")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer l.Close()
	requests := make(chan string, 2)
	serve := func(answers ...string) {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		buf := make([]byte, 512)
		for _, answer := range answers {
			if _, err := conn.Write([]byte(answer + "\n")); err != nil {
				return
			}
			n, _ := conn.Read(buf)
			requests <- strings.TrimSpace(string(buf[:n]))
		}
		_, _ = conn.Write([]byte(`{"event":"SHUTDOWN"}` + "\n" + `{"return":{}}` + "\n"))
	}

	go serve(`{"QMP":{"version":{}}}`, `{"return":{}}`)
	require.NoError(t, qmpQuit(socket))
	assert.JSONEq(t, `{"execute":"qmp_capabilities"}`, <-requests)
	assert.JSONEq(t, `{"execute":"quit"}`, <-requests)

	go serve(`{"QMP":{}}`, `{"return":{}}`)
	require.NoError(t, qmp(socket, "block_set_io_throttle", map[string]any{"bps": 512}))
	<-requests
	assert.JSONEq(t, `{"execute":"block_set_io_throttle","arguments":{"bps":512}}`, <-requests)

	go serve(`{"QMP":{}}`, `{"error":{"desc":"not now"}}`)
	require.ErrorContains(t, qmpQuit(socket), "not now")
	require.ErrorContains(t, qmpQuit(socket+"x"), "cannot reach the monitor")
}

func TestFreePorts(t *testing.T) {
	for _, network := range []string{"tcp", "udp"} {
		ports, err := freePorts(network, 2)
		require.NoError(t, err)
		require.Len(t, ports, 2)
		assert.NotEqual(t, ports[0], ports[1])
	}
}
