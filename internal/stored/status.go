package stored

import "fmt"

// Status is the state of an open message.
type Status int16

// States of open messages. A message that is completed is not open: its claim says so.
const (
	Received        Status = 1
	InProgress      Status = 2
	Settling        Status = 3
	FailedRetryable Status = 4
	FailedTerminal  Status = 5
	Parked          Status = 6
	Held            Status = 7
)

// Open are the states of open messages.
var Open = []Status{Received, InProgress, Settling, FailedRetryable, FailedTerminal, Parked, Held}

// String returns the name of the state.
func (s Status) String() string {
	switch s {
	case Received:
		return "RECEIVED"
	case InProgress:
		return "IN_PROGRESS"
	case Settling:
		return "SETTLING"
	case FailedRetryable:
		return "FAILED_RETRYABLE"
	case FailedTerminal:
		return "FAILED_TERMINAL"
	case Parked:
		return "PARKED"
	case Held:
		return "HELD"
	}
	return fmt.Sprintf("Status(%d)", int16(s))
}

// Stuck reports whether only an operator will do something about the message.
func (s Status) Stuck() bool { return s == Parked || s == FailedTerminal }

// Retryable reports whether an operator may have the message tried again.
func (s Status) Retryable() bool { return s.Stuck() || s == FailedRetryable }

// ReasonCode says why a message has its status, as far as that decides what happens next. The text is for people.
type ReasonCode int16

// Reasons that decide something.
const (
	ReasonOther    ReasonCode = 0
	ReasonReplayed ReasonCode = 1 // PARKED, since its consumer refuses replayed messages
)

// ErrorCode says what kind the last error of a message is, as far as that decides what happens next.
type ErrorCode int16

// Errors that decide something.
const (
	ErrorOther      ErrorCode = 0
	ErrorConnection ErrorCode = 1 // a run lost its connection to the database
)

// Results of claims.
const (
	ResultOpen       = 0 // the open row of the key says what
	ResultCompleted  = 1
	ResultDiscarded  = 2 // by an operator
	ResultSuperseded = 3 // by the message of a newer epoch
	ResultImported   = 4 // another system handled it, so the hash of its payload is not known
)
