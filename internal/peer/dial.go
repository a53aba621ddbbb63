package peer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"syscall"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/relay"
)

// maxVersion bounds the answer to the question for the version.
const maxVersion = 64 << 10

// dial opens a connection and makes sure that the daemon behind it is the one meant and
// can be understood. The error is an *api.Error: no request has been sent.
func (w where) dial(ctx context.Context) (net.Conn, api.Version, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*w.connect)
	defer cancel()
	conn, err := w.open(ctx)
	if err != nil {
		return nil, api.Version{}, err
	}
	// The deadline covers the answer; ctx may also be cancelled.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	v, err := w.ask(conn)
	if err == nil {
		err = w.judge(v)
	} else {
		err = w.noVersion(ctx, err)
	}
	if err == nil && !stop() {
		err = w.unreachable("no answer in time", nil)
	}
	if err != nil {
		_ = conn.Close() // of no use
		return nil, v, err
	}
	return conn, v, nil
}

func (w where) open(ctx context.Context) (net.Conn, error) {
	if w.target.Socket != "" {
		return w.openSocket(ctx)
	}
	cmd, err := relay.SSH(w.target, w.connect, sshOptions(w.sshDir), "virtlvm", "relay", "--peer", w.self)
	if err != nil {
		return nil, api.NewError(api.KindBadRequest, fmt.Sprintf("cannot reach %s: %v", w.name, err))
	}
	cmd.Env = sshEnv()
	conn, err := relay.Dial(ctx, cmd)
	if err != nil {
		return nil, w.explainDial(err)
	}
	return conn, nil
}

func (w where) openSocket(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", w.target.Socket)
	if err == nil {
		if err = relay.Introduce(conn, w.self); err != nil {
			err = errors.Join(err, conn.Close())
		}
	}
	switch {
	case err == nil:
		return conn, nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, w.unreachable("virtlvmd does not run there", err)
	}
	return nil, w.unreachable(err.Error(), err)
}

// ask asks for the version, byte for byte: nothing of what follows may be swallowed.
func (w where) ask(conn net.Conn) (api.Version, error) {
	var v api.Version
	req, err := http.NewRequest(http.MethodGet, "http://virtlvmd"+api.RouteVersion, nil)
	if err != nil {
		return v, err
	}
	if err := req.Write(conn); err != nil {
		return v, err
	}
	r := bufio.NewReader(io.LimitReader(conn, maxVersion))
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return v, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return v, err
	}
	if resp.StatusCode != http.StatusOK {
		return v, w.refusal(resp.StatusCode, data)
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return v, &oddError{"its version cannot be understood"}
	}
	if r.Buffered() > 0 || resp.Close {
		return v, &oddError{"it says more than it was asked, or hangs up"}
	}
	return v, nil
}

// noVersion says why no version came.
func (w where) noVersion(ctx context.Context, err error) error {
	var remote *RemoteError
	switch {
	case errors.As(err, &remote):
		return api.WrapError(api.KindUnreachable, fmt.Sprintf("cannot reach %s: it refuses: %s", w.name, remote.Err.Message), nil)
	case ctx.Err() != nil:
		return w.unreachable("no answer in time; see `systemctl status virtlvmd` there", err)
	}
	var odd *oddError
	if errors.As(err, &odd) {
		return w.unreachable(odd.what+"; what answers there is not virtlvmd", err)
	}
	return w.unreachable("virtlvmd there does not answer; see `systemctl status virtlvmd` there", err)
}

// judge compares versions and names.
func (w where) judge(v api.Version) error {
	switch {
	case !api.Compatible(v.ProtocolMajor, v.ProtocolMinor):
		return api.NewError(api.KindUnsupported, fmt.Sprintf("cannot speak with %s: virtlvmd there (%s) speaks protocol %d.%d, this host %d.%d; bring both to the same release",
			w.name, tidy(v.Version), v.ProtocolMajor, v.ProtocolMinor, api.ProtocolMajor, api.ProtocolMinor))
	case v.Host != w.name:
		return api.NewError(api.KindForbidden, fmt.Sprintf("refused: %s (%s) answers as %s; correct [peers] hosts in virtlvm.toml, or the name of that host", w.name, w.target, named(v.Host)))
	case v.Peer == "":
		return api.NewError(api.KindForbidden, fmt.Sprintf("refused: %s does not take us for a peer; its authorized_keys must say command=\"virtlvm relay --peer %s\", see `virtlvm peer authorize`", w.name, w.self))
	case v.Peer != w.self:
		return api.NewError(api.KindForbidden, fmt.Sprintf("refused: %s knows this host, %s, as %s; correct --peer in the authorized_keys there, see `virtlvm peer authorize`", w.name, w.self, named(v.Peer)))
	}
	return nil
}

// named quotes a name that is none.
func named(s string) string {
	if s == "" {
		return "a host without a name"
	}
	if api.CheckHostName(s) != nil {
		return fmt.Sprintf("%q", tidy(s))
	}
	return s
}

func (w where) unreachable(why string, cause error) *api.Error {
	return api.WrapError(api.KindUnreachable, fmt.Sprintf("cannot reach %s: %s", w.name, why), cause)
}
