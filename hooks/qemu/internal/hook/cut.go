package hook

import (
	"errors"
	"os"
	"time"
)

// Why a call is cut short.
var (
	errLate     = errors.New("no answer in time")
	errToldToGo = errors.New("the hook was told to end before virtlvmd answered")
)

// cut ends a call that waits for something that may never come, by the outcome of an
// answer that has not come, and the process with it: whatever blocks is left behind.
func (r *run) cut(why error) {
	if !r.ended.CompareAndSwap(false, true) {
		return // it has just ended by itself
	}
	r.env.Exit(r.failed(why).emit(r.env, r.held))
}

// cutAt cuts the call at a time.
func (r *run) cutAt(t time.Time) {
	r.after(time.Until(t), func() { r.cut(errLate) })
}

// heed lets signals that ask for the end of the process cut the call.
func (r *run) heed() {
	signals := make(chan os.Signal, 1)
	r.env.Signals(signals)
	go func() {
		<-signals
		r.cut(errToldToGo)
	}()
}

func (r *run) after(d time.Duration, do func()) {
	r.timers = append(r.timers, time.AfterFunc(d, do))
}

// stop ends the timers of after.
func (r *run) stop() {
	for _, t := range r.timers {
		t.Stop()
	}
}

// before is a time ahead of the deadline by a part of what is left, at most limit.
func (r *run) before(part int, limit time.Duration) time.Time {
	return r.deadline.Add(-min(time.Until(r.deadline)/time.Duration(part), limit))
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
