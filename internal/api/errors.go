package api

import "errors"

// Kind classifies an error for programs. Each kind has one HTTP status and one exit
// code; both are stable.
type Kind string

// Error kinds.
const (
	KindInternal    Kind = "internal"     // a defect or an unexpected answer of a tool
	KindBadRequest  Kind = "bad_request"  // the request makes no sense: wrong name, wrong mode
	KindForbidden   Kind = "forbidden"    // the caller may not do this on this socket
	KindNotFound    Kind = "not_found"    // no such volume, guest or command
	KindHeld        Kind = "held"         // another host or guest holds the volume
	KindInUse       Kind = "in_use"       // the volume is open or used by a guest here
	KindUnsupported Kind = "unsupported"  // LVM or virtlvm cannot do this to such a volume
	KindLocking     Kind = "locking"      // lvmlockd, sanlock or the lockspace does not work
	KindStuck       Kind = "stuck"        // an LVM command passed its deadline and has not ended
	KindUnknown     Kind = "unknown"      // the outcome is not known; observe again
	KindDatabase    Kind = "database"     // the journal cannot be written
	KindUnreachable Kind = "unreachable"  // the daemon cannot be reached
	KindOutOfScope  Kind = "out_of_scope" // the volume group is not managed by virtlvm
)

// Error is the JSON body of every answer that is not 2xx, and the typed error that
// crosses package borders.
type Error struct {
	Kind    Kind   `json:"kind"`
	Message string `json:"message"` // one line: what happened, to which volume, who holds it, what to do
	cause   error  // not on the wire; see WrapError
}

// Error returns the one-line message.
func (e *Error) Error() string { return e.Message }

// NewError makes an error of a kind.
func NewError(kind Kind, message string) *Error { return &Error{Kind: kind, Message: message} }

// WrapError makes an error of a kind that keeps its cause for errors.Is and errors.As
// inside this process. The message must say all that an administrator needs: the cause
// is neither shown nor sent.
func WrapError(kind Kind, message string, cause error) *Error {
	return &Error{Kind: kind, Message: message, cause: cause}
}

// Unwrap returns the cause given to WrapError, if any.
func (e *Error) Unwrap() error { return e.cause }

// KindOf finds the kind of err anywhere in its chain; KindInternal if it has none.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return KindInternal
}

// HTTP status codes (RFC 9110, section 15). They stand here because the hook is linked with
// this package, and net/http would double it.
const (
	statusBadRequest          = 400
	statusForbidden           = 403
	statusNotFound            = 404
	statusConflict            = 409
	statusUnprocessableEntity = 422
	statusInternalServerError = 500
	statusBadGateway          = 502
	statusServiceUnavailable  = 503
	statusGatewayTimeout      = 504
)

// HTTPStatus is the status that carries an error of this kind.
func (k Kind) HTTPStatus() int {
	switch k {
	case KindBadRequest:
		return statusBadRequest
	case KindForbidden:
		return statusForbidden
	case KindNotFound, KindOutOfScope:
		return statusNotFound
	case KindHeld, KindInUse:
		return statusConflict
	case KindUnsupported:
		return statusUnprocessableEntity
	case KindLocking, KindStuck, KindDatabase:
		return statusServiceUnavailable
	case KindUnreachable:
		return statusBadGateway
	case KindUnknown:
		return statusGatewayTimeout
	}
	return statusInternalServerError
}

// Exit codes of the CLI. Stable; listed in virtlvm(8).
const (
	ExitOK          = 0 // done
	ExitError       = 1 // internal error
	ExitUsage       = 2 // wrong usage, or a request that makes no sense
	ExitUnreachable = 3 // the daemon cannot be reached
	ExitHeld        = 4 // another host or guest holds the volume, or it is in use
	ExitNotFound    = 5 // no such thing, or the volume group is out of scope
	ExitLocking     = 6 // locks, LVM or the database do not work
	ExitUnknown     = 7 // the outcome is not known yet
	ExitForbidden   = 8 // not allowed
	ExitProblems    = 9 // `status`, `check`, `config check` or `peer test` found problems
)

// ExitCode is the exit code of the CLI for an error of this kind.
func (k Kind) ExitCode() int {
	switch k {
	case KindBadRequest:
		return ExitUsage
	case KindUnreachable:
		return ExitUnreachable
	case KindHeld, KindInUse, KindUnsupported:
		return ExitHeld
	case KindNotFound, KindOutOfScope:
		return ExitNotFound
	case KindLocking, KindStuck, KindDatabase:
		return ExitLocking
	case KindUnknown:
		return ExitUnknown
	case KindForbidden:
		return ExitForbidden
	}
	return ExitError
}
