package admin

import (
	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/stored"
)

// Admin carries out what operators decide about a Store's messages. It is safe for concurrent use,
// and cheap to make.
type Admin struct {
	inbox inbox.Internals
	rows  *stored.Rows
	log   watermill.LoggerAdapter
}

// New returns the operators' side of store.
func New(store *inbox.Store) *Admin {
	inner := store.Internals()
	return &Admin{inbox: inner, rows: inner.Rows(), log: store.Logger()}
}

// Operator is a person who decides, and the reason. The audit table keeps both.
type Operator = stored.Operator

// Status is the state of an open message.
type Status = stored.Status

// States of open messages. A completed message is not open: its claim says that it is completed.
const (
	Received        = stored.Received        // waits to be handled
	InProgress      = stored.InProgress      // is with a handler
	Settling        = stored.Settling        // was handled; its outcome is not yet published
	FailedRetryable = stored.FailedRetryable // failed, and will be tried again
	FailedTerminal  = stored.FailedTerminal  // failed, and waits for an operator
	Parked          = stored.Parked          // was not handled, or failed too often, and waits for an operator
	Held            = stored.Held            // waits for its predecessor
)
