package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"virtlvm/internal/api"
	"virtlvm/internal/server"
)

func TestMain(m *testing.M) {
	time.Local = time.UTC
	testscript.Main(m, map[string]func(){
		"virtlvm": func() { os.Exit(Main(os.Args, os.Stdout, os.Stderr)) },
	})
}

// The scripts compare what each command prints and how it exits, to the letter.
// `UPDATE=1 go test ./internal/cli` writes what is printed now into them.
func TestScripts(t *testing.T) {
	// urfave/cli keeps its help command in a global that each run sets up anew.
	var oneAtATime sync.Mutex
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("VIRTLVM_SOCKET", filepath.Join(env.WorkDir, "sock"))
			// Else each program waits a second at its end when the race detector is on.
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"daemon": startDaemon,
			// expand is `expand FILE`: variables in it become their values.
			"expand": func(ts *testscript.TestScript, _ bool, args []string) {
				text := os.Expand(ts.ReadFile(args[0]), ts.Getenv)
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
			},
			"run": func(ts *testscript.TestScript, _ bool, args []string) {
				oneAtATime.Lock()
				defer oneAtATime.Unlock()
				runInside(ts, args)
			},
			"start": runProgram,
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE") != "",
	})
}

// runInside is `run CODE ARGS...`: virtlvm, in this process, with the exit code it must
// have.
func runInside(ts *testscript.TestScript, args []string) {
	argv := append([]string{"virtlvm", "--socket", ts.Getenv("VIRTLVM_SOCKET")}, args[1:]...)
	checkExit(ts, args[0], Main(argv, ts.Stdout(), ts.Stderr()))
}

// runProgram is `start CODE ARGS...`: the same as a process of its own, with the
// environment and the directory of the script.
func runProgram(ts *testscript.TestScript, _ bool, args []string) {
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec("virtlvm", args[1:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	checkExit(ts, args[0], got)
}

func checkExit(ts *testscript.TestScript, want string, got int) {
	if strconv.Itoa(got) != want {
		ts.Fatalf("exit code %d, want %s", got, want)
	}
}

// startDaemon is `daemon DIR [SOCKET]`: a daemon on the script's socket, or on a peer
// socket of that name, that answers each route
// with the file of that name below DIR and appends what it was asked to the file
// `requests`. An answer with a kind and a message is an error; one that is not JSON at
// all is sent as it is.
func startDaemon(ts *testscript.TestScript, _ bool, args []string) {
	dir := ts.MkAbs(args[0])
	socket := ts.Getenv("VIRTLVM_SOCKET")
	if len(args) > 1 {
		socket = ts.MkAbs(args[1])
	}
	l, err := net.Listen("unix", socket)
	ts.Check(err)
	if len(args) > 1 {
		l = server.PeerListener(l)
	}
	requests, err := os.OpenFile(ts.MkAbs("requests"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	ts.Check(err)
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, err = fmt.Fprintln(requests, strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Method, r.URL, body)))
		}
		if err == nil {
			err = canned(w, dir, file(r))
		}
		if err != nil {
			http.Error(w, "fake daemon: "+err.Error(), http.StatusTeapot)
		}
	})}
	go func() { _ = srv.Serve(l) }() // ends when the script does; what fails shows in the script
	ts.Defer(func() {
		ts.Check(srv.Close())
		ts.Check(requests.Close())
	})
}

// file is the file that answers a request: of what is asked for at the route of a list, "run"
// below it.
func file(r *http.Request) string {
	if r.Method == http.MethodPost && r.URL.Path == api.RouteCommands {
		return r.URL.Path + "/run"
	}
	return r.URL.Path
}

func canned(w http.ResponseWriter, dir, route string) error {
	data, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(route)))
	if errors.Is(err, fs.ErrNotExist) {
		http.NotFound(w, nil)
		return nil
	}
	if err != nil {
		return err
	}
	if !json.Valid(data) {
		_, err = w.Write(data)
		return err
	}
	var refusal api.Error
	if strict(data, &refusal) == nil && refusal.Message != "" {
		return send(w, refusal.Kind.HTTPStatus(), refusal)
	}
	// Through the type of the wire, so that an answer no daemon could send is noticed.
	answer := answerOf(route)
	if err := strict(data, answer); err != nil {
		return err
	}
	return send(w, http.StatusOK, answer)
}

func answerOf(route string) any {
	switch route {
	case api.RouteVersion:
		return &api.Version{}
	case api.RouteStatus:
		return &api.Status{}
	case api.RouteVolumes:
		return &[]api.Volume{}
	case api.RouteVolume:
		return &api.Volume{}
	case api.RouteGuests:
		return &[]api.Guest{}
	case api.RouteHandoff:
		return &api.GuestHandoff{}
	case api.RouteCommands:
		return &[]api.Command{}
	case api.RouteCommandPlan:
		return &api.CommandPlan{}
	case api.RouteEvents:
		return &[]api.Event{}
	case api.RouteHooks:
		return &[]api.HookRecord{}
	case api.RoutePeers:
		return &api.Peers{}
	case api.RouteLock:
		return &api.Lock{}
	case api.RouteLocks:
		return &[]api.Lock{}
	case api.RouteStale:
		return &[]api.StaleHint{}
	case api.RouteWhere:
		return &api.Endpoint{}
	case api.RouteTransfer:
		return &api.TransferResult{}
	case api.RouteHosts:
		return &[]api.Host{}
	case api.RouteCheck:
		return &[]api.CheckReport{}
	case api.RouteActivate, api.RouteDeactivate, api.RouteRepair, api.RouteFenced:
		return &api.Command{}
	}
	if strings.HasPrefix(route, api.RouteCommands+"/") {
		return &api.Command{}
	}
	return nil
}

func strict(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}

func send(w http.ResponseWriter, status int, body any) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	return json.NewEncoder(w).Encode(body)
}
