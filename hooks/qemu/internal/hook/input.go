package hook

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

// maxXML is the largest domain XML that is passed on, in bytes.
const maxXML = 32 << 20

// readXML reads standard input to its end, so that libvirt never writes into a closed
// pipe, and keeps no more than maxXML of it. It may block for ever; what has come until then
// can still give its uuid.
func (r *run) readXML() error {
	piece := make([]byte, 16<<10)
	var tooLarge error
	for {
		n, err := r.env.Stdin.Read(piece)
		r.mu.Lock()
		if room := maxXML - len(r.xml); n > room {
			n, tooLarge = room, fmt.Errorf("its domain XML is larger than %d MiB", maxXML>>20)
		}
		r.xml = append(r.xml, piece[:n]...)
		r.whole = errors.Is(err, io.EOF)
		r.mu.Unlock()
		switch {
		case errors.Is(err, io.EOF):
			return tooLarge
		case err != nil:
			return fmt.Errorf("its domain XML cannot be read: %w", err)
		}
	}
}

// domainUUID finds the guest's uuid without judging the document: libvirt writes it
// right behind the name, before anything that a user's own text could imitate. Empty
// where there is none.
func domainUUID(xml []byte) string {
	_, rest, found := bytes.Cut(xml, []byte("<uuid>"))
	if !found {
		return ""
	}
	text, _, found := bytes.Cut(rest[:min(len(rest), 256)], []byte("</uuid>"))
	if !found {
		return ""
	}
	uuid := strings.ToLower(string(bytes.TrimSpace(text)))
	if len(uuid) != 36 {
		return ""
	}
	for i, c := range []byte(uuid) {
		switch dash := i == 8 || i == 13 || i == 18 || i == 23; {
		case dash && c != '-':
			return ""
		case !dash && !strings.ContainsRune("0123456789abcdef", rune(c)):
			return ""
		}
	}
	return uuid
}
