package command

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"virtlvm/internal/model"
)

func TestLocalCommand(t *testing.T) {
	simulate(t, func(s *sim) {
		a := s.hosts["a"]
		c := a.run(copyOf("v1", ""))
		assert.Equal(t, "STARTED", c.State)
		c = a.until(c.ID, time.Minute, model.StateBackend)
		s.w.set(func(w *world) { w.backends["a-"+itoa(c.Sequence)].done = 500 })
		time.Sleep(3 * time.Second)
		assert.Equal(t, int64(500), a.get(c.ID).Progress.Done)
		s.w.finish(true)
		c = a.until(c.ID, time.Minute, model.StateCompleted)
		assert.Equal(t, []string{"STARTED", "PROCESSING_IN_BACKEND", "COMPLETED"}, path(c))
		assert.JSONEq(t, `{"bytes":1000}`, string(c.Answer))
		assert.Equal(t, "copied", c.Outcome)
	})
}
