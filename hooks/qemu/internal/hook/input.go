package hook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// maxXML is the largest domain XML that is passed on, in bytes.
const maxXML = 32 << 20

// input is the domain XML as far as it came.
type input struct {
	xml []byte
	err error // why it is not whole
}

// readXML reads standard input to its end, so that libvirt never writes into a closed
// pipe, and keeps no more than maxXML of it.
func readXML(ctx context.Context, r io.Reader) input {
	// The reader may block for ever; it is then left behind with the process. It hands
	// over what it has in pieces, so that half a document can still give its uuid.
	pieces := make(chan input)
	go func() {
		defer close(pieces)
		for {
			piece := make([]byte, 64<<10)
			n, err := r.Read(piece)
			select {
			case pieces <- input{xml: piece[:n], err: err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	var in input
	for {
		select {
		case p := <-pieces:
			if room := maxXML - len(in.xml); len(p.xml) > room {
				p.xml = p.xml[:room]
				in.err = fmt.Errorf("its domain XML is larger than %d MiB", maxXML>>20)
			}
			in.xml = append(in.xml, p.xml...)
			switch {
			case errors.Is(p.err, io.EOF):
				return in
			case p.err != nil:
				in.err = fmt.Errorf("its domain XML cannot be read: %w", p.err)
				return in
			}
		case <-ctx.Done():
			in.err = errors.New("its domain XML has not come in time")
			return in
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
