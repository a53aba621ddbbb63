package server

import (
	"bytes"
	"net/http"

	"virtlvm/internal/api"
)

// metricsType is the content type of Prometheus' text format.
const metricsType = "text/plain; version=0.0.4; charset=utf-8"

func (s *Server) metrics(r *http.Request) (any, error) {
	if s.Metrics == nil {
		return nil, api.NewError(api.KindNotFound, "this virtlvmd has no metrics")
	}
	var text bytes.Buffer
	if err := s.Metrics(r.Context(), &text); err != nil {
		return nil, err
	}
	return stream(func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", metricsType)
		_, _ = w.Write(text.Bytes()) // who has gone needs no answer
	}), nil
}
