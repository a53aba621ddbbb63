package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"virtlvm/internal/api"
)

// Pace of the event streams.
const (
	maxFollowers = 64
	eventPause   = 500 * time.Millisecond // between two looks into the journal
	heartbeat    = 15 * time.Second       // a client that has gone is noticed by then
	eventBatch   = 1000
	writePatient = 10 * time.Second // a client that reads no more is dropped
)

// events lists transitions, or with follow streams them. The journal is the source: what a
// client has missed it gets when it comes back with the number of the last event it has seen.
func (s *Server) events(r *http.Request) (any, error) {
	limit, err := number(r, "limit", defaultLimit, maxLimit)
	if err != nil {
		return nil, err
	}
	after := int64(-1)
	if r.URL.Query().Has("after") {
		if after, err = number(r, "after", 0, 1<<62); err != nil {
			return nil, err
		}
	}
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		if _, err := fmt.Sscan(last, &after); err != nil || after < 0 {
			return nil, api.NewError(api.KindBadRequest, fmt.Sprintf("Last-Event-ID %q is not the number of an event", last))
		}
	}
	if r.URL.Query().Get("follow") == "" {
		return s.Journal.Events(r.Context(), after, int(limit))
	}
	select {
	case s.follow <- struct{}{}:
	default:
		return nil, api.NewError(api.KindStuck, fmt.Sprintf("%d clients follow the events already", maxFollowers))
	}
	return stream(func(w http.ResponseWriter) {
		defer func() { <-s.follow }()
		s.streamEvents(r.Context(), w, after)
	}), nil
}

func (s *Server) streamEvents(ctx context.Context, w http.ResponseWriter, after int64) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(w)
	if after < 0 { // what happens from now on
		newest, err := s.Journal.Events(ctx, -1, 1)
		if err != nil {
			return
		}
		after = 0
		for _, e := range newest {
			after = e.ID
		}
	}
	ticks := time.NewTicker(eventPause)
	defer ticks.Stop()
	silent := heartbeat // the first one tells at once that the stream has begun
	for {
		batch, err := s.Journal.Events(ctx, after, eventBatch)
		if err != nil {
			s.Log.Debug("cannot follow the events", "err", err)
			return
		}
		text := []byte{}
		for _, e := range batch {
			data, err := json.Marshal(e)
			if err != nil {
				return
			}
			text = fmt.Appendf(text, "id: %d\ndata: %s\n\n", e.ID, data)
			after = e.ID
		}
		if silent += eventPause; len(text) == 0 && silent > heartbeat {
			text = []byte(":\n\n")
		}
		if len(text) > 0 {
			silent = 0
			_ = out.SetWriteDeadline(time.Now().Add(writePatient))
			if _, err := w.Write(text); err != nil || out.Flush() != nil {
				return
			}
		}
		if len(batch) == eventBatch {
			continue
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		case <-s.stopping:
			return
		}
	}
}
