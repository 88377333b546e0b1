package stored

import "fmt"

// Status is the state of an open message.
type Status int16

// States of open messages. A completed message is not open: its claim says that it is completed.
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

// Stuck reports whether the message waits for an operator.
func (s Status) Stuck() bool { return s == Parked || s == FailedTerminal }

// Retryable reports whether an operator may retry the message.
func (s Status) Retryable() bool { return s.Stuck() || s == FailedRetryable }

// ReasonCode says why a message has its status, if that decides what happens next. The text of the
// reason is for people.
type ReasonCode int16

// Reasons that decide what happens next.
const (
	ReasonOther    ReasonCode = 0
	ReasonReplayed ReasonCode = 1 // PARKED because its consumer refuses replayed messages
	ReasonCopied   ReasonCode = 2 // a copy was acked while the message was IN_PROGRESS, and the row stands for both; kept if it is put back, gone with the next attempt
)

// ErrorCode says what kind of error the last one was, if that decides what happens next.
type ErrorCode int16

// Errors that decide what happens next.
const (
	ErrorOther      ErrorCode = 0
	ErrorConnection ErrorCode = 1 // a run lost its connection to the database
)

// Results of claims.
const (
	ResultOpen       = 0 // the open row of the key has the state
	ResultCompleted  = 1
	ResultDiscarded  = 2 // by an operator
	ResultSuperseded = 3 // by the message of a newer epoch
	ResultImported   = 4 // another system handled it, so its payload's hash is not known
)
