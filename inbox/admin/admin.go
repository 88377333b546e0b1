package admin

import (
	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/stored"
)

// Admin acts for operators on what a Store keeps. It is safe for concurrent use, and costs nothing to make.
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

// Operator is who decides something, and why; both are kept in the audit table.
type Operator = stored.Operator

// Status is the state of an open message.
type Status = stored.Status

// States of open messages. A message that is completed is not open: its claim says so.
const (
	Received        = stored.Received        // waits to be handled
	InProgress      = stored.InProgress      // is with a handler
	Settling        = stored.Settling        // was handled, and what the handler produced is to be published
	FailedRetryable = stored.FailedRetryable // failed, and is tried again
	FailedTerminal  = stored.FailedTerminal  // failed, and waits for an operator
	Parked          = stored.Parked          // was not handled, or failed too often, and waits for an operator
	Held            = stored.Held            // waits for its predecessor
)
