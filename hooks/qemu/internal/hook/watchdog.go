package hook

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"virtlvm/internal/api"
)

// maxDeadline is the most that the settings may ask for.
const maxDeadline = time.Hour

// watchdog ends the process when the deadline passes, whatever blocks: a full pipe, a
// disk that does not answer. Orderly endings come a little before it.
type watchdog struct {
	exit  func(code int)
	code  atomic.Int64
	mu    sync.Mutex
	timer *time.Timer
}

// newWatchdog starts with the default deadline, to be set once the real one is known.
func newWatchdog(exit func(int), code int) *watchdog {
	w := &watchdog{exit: exit}
	w.onExpiry(code)
	w.timer = time.AfterFunc(api.DefaultHookDeadlineSeconds*time.Second, func() { w.exit(w.expiry()) })
	return w
}

// onExpiry sets the exit code for when the deadline passes.
func (w *watchdog) onExpiry(code int) { w.code.Store(int64(code)) }

func (w *watchdog) expiry() int { return int(w.code.Load()) }

func (w *watchdog) reset(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Reset(d)
}

func (w *watchdog) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
}

// deadline is the time one call may take, from the settings where they can be read.
func deadline(path string) time.Duration {
	const otherwise = api.DefaultHookDeadlineSeconds * time.Second
	data, err := readFile(path)
	if err != nil {
		return otherwise
	}
	seconds := settings(data).DeadlineSeconds
	if seconds <= 0 {
		return otherwise
	}
	return time.Duration(min(seconds, int(maxDeadline/time.Second))) * time.Second
}

// settings reads what virtlvmd has written. Nearly always that is the one number, and no
// decoder is needed; it is zero where it cannot be understood.
func settings(data []byte) (s api.HookSettings) {
	text, ours := strings.CutPrefix(string(data), `{"deadline_seconds":`)
	if n, err := strconv.Atoi(strings.TrimSuffix(text, "}")); ours && err == nil && strings.HasSuffix(text, "}") {
		return api.HookSettings{DeadlineSeconds: n}
	}
	if json.NewDecoder(bytes.NewReader(data)).Decode(&s) != nil {
		return api.HookSettings{}
	}
	return s
}

// breakGlass reports whether the switch is on. Where that cannot be told it is off: the
// operation is judged as always.
func breakGlass(path string) bool {
	var st syscall.Stat_t
	return syscall.Lstat(path, &st) == nil
}
