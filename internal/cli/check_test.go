package cli

import (
	"bufio"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestConfirm(t *testing.T) {
	for answer, want := range map[string]bool{
		"y\n": true, "YES\n": true, " yes \n": true, "\n": false, "n\n": false, "yup\n": false, "": false, "y": false,
	} {
		p := &program{out: bufio.NewWriter(io.Discard)}
		assert.Equal(t, want, p.confirm(strings.NewReader(answer)), "%q", answer)
	}
	// One answer is taken for each question.
	in := strings.NewReader("y\nn\n")
	p := &program{out: bufio.NewWriter(io.Discard)}
	assert.True(t, p.confirm(in))
	assert.False(t, p.confirm(in))
}
