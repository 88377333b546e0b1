package inbox

import (
	"errors"
	"fmt"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/meaning"
	"github.com/millrace-go/millrace/internal/stored"
)

// Conditions a caller may branch on, with errors.Is.
var (
	// ErrNoTx says that a context carries no transaction of the inbox.
	ErrNoTx = errors.New("inbox: no transaction in this context: " +
		"is middleware.Inbox on this handler, and is ctx the message's own context?")

	// ErrTxEnded says that the transaction in a context is over: the handler has returned.
	ErrTxEnded = errors.New("inbox: the transaction in this context has ended: " +
		"finish work on it before the handler returns")

	// ErrNoMessage says that a context belongs to no message that is being handled.
	ErrNoMessage = errors.New("inbox: this context belongs to no message that is being handled: " +
		"is middleware.Inbox or middleware.Deduplicate on this handler, is ctx the message's own context, " +
		"and has the handler not returned yet?")

	// ErrInProgress says that another process holds the message, or its aggregate at the version gate, and
	// did not finish within TwinWait. The message was not handled; it will be redelivered.
	ErrInProgress = errors.New("another process is handling this message")

	// ErrUnavailable says that the database does not answer, accepts no connections, is full or denies a right,
	// that the connection was lost while the handler ran, or that no payload could be kept for the journal. The
	// delivery was not handled, unless the connection was lost at COMMIT: then its redelivery finds out. The nack was
	// delayed, so that the broker does not redeliver in a storm.
	ErrUnavailable = database.ErrUnavailable

	// ErrNotMigrated says that tables or columns are missing.
	ErrNotMigrated = database.ErrNotMigrated

	// ErrReadOnly says that the database takes no writes.
	ErrReadOnly = database.ErrReadOnly

	// ErrClosed says that the Store, or the Leases, were closed.
	ErrClosed = errors.New("inbox: the store is closed")

	// ErrCollision says that a message has the key, but not the payload, of another one.
	ErrCollision = errors.New("another message with this key has a different payload")

	// ErrKeyChanged says that the consumer ran with another key before.
	ErrKeyChanged = stored.ErrKeyChanged

	// ErrTxNotUsed says that a handler succeeded without its transaction, which RequireTx forbids.
	ErrTxNotUsed = errors.New("the handler took neither inbox.Tx nor returned or published messages, and RequireTx forbids that: " +
		"its effects would be outside the guarantee; take inbox.Tx also where there is nothing to do, or exclude the handler with Skip")

	// ErrTxEndedByHandler says that a handler committed or rolled back the inbox's transaction, or
	// continued after a statement had made the database roll it back.
	ErrTxEndedByHandler = errors.New("the handler ended the inbox's transaction itself: " +
		"leave Commit, Rollback and schema statements out of it")

	// ErrSwallowed says that a middleware inside Inbox or Deduplicate turned a failure of the handler or
	// of a version gate into a success, ran the handler again in the same transaction, or returned before
	// the handler did.
	ErrSwallowed = errors.New("a middleware inside the inbox hid how the handler ended: " +
		"put Retry, PoisonQueue, IgnoreErrors and Duplicator outside middleware.Inbox or Deduplicate, and wait for the handler")

	// ErrNoPlugin says that the router that delivers a message has no plugin of the Store. The
	// message was not handled, and its nack was delayed.
	ErrNoPlugin = errors.New("the router has no plugin, without which nobody notices a Retry inside the inbox: " +
		"wire it with middleware.Inbox.AddTo(router), or add router.AddPlugin(store.Plugin()), or set inbox.Config.WithoutPlugin")

	// ErrLost says that another process or an operator changed the message, or its claim, meanwhile.
	ErrLost = errors.New("the message was changed by someone else meanwhile")

	// ErrLeaseLost says that a lease ended before its holder was done: another process may
	// have handled the message as well.
	ErrLeaseLost = meaning.ErrLeaseLost

	// ErrInDoubt says that a step was begun and nobody knows whether it was done. If no queue delivers the
	// message, its nack was delayed.
	ErrInDoubt = errors.New("nobody knows whether it was done")

	// ErrHoldsTx says that a step is not done yet, and cannot be done while a transaction is open.
	ErrHoldsTx = errors.New("a transaction is open, and the call would hold it: do the step in Inbox.Before, " +
		"or publish a message through the outbox and do the step in a consumer of its own with middleware.Deduplicate")

	// ErrUnknownType says that no handler knows the event type of a message.
	ErrUnknownType = errors.New("no handler knows this event type")

	// ErrNoVersion says that a message names no version of an aggregate.
	ErrNoVersion = errors.New("the message names no version of an aggregate")

	// ErrNoQueue says that the version gate would hold a message that no queue would deliver.
	ErrNoQueue = errors.New("no queue would deliver a held message: decorate the subscriber of this handler " +
		"with pubsub.Durable, or choose another OnGap")

	// ErrNotServed says that a message cannot be tried again: no queue delivers it.
	ErrNotServed = errors.New("no queue delivers the stored messages of its consumer: start its service with pubsub.Durable, " +
		"or give a publisher that sends the message back to its topic")

	// ErrErased says that a payload can never be opened again: its encryption key was deleted.
	ErrErased = meaning.ErrErased

	// ErrNotFound says that there is no such open message, consumer, aggregate, step or result.
	ErrNotFound = stored.ErrNotFound

	// ErrWrongState says that the subject of an operation is in a state that does not allow it. The error names both.
	ErrWrongState = stored.ErrWrongState
)

// A DeliveryError names the message and the consumer that a failure is about.
type DeliveryError struct {
	Consumer  string
	MessageID string // the key, or the UUID where there is no key yet
	Topic     string
	Err       error
}

func (e *DeliveryError) Error() string {
	return fmt.Sprintf("inbox: consumer %q, message %q from topic %q: %v", e.Consumer, e.MessageID, e.Topic, e.Err)
}

// Unwrap returns the cause.
func (e *DeliveryError) Unwrap() error { return e.Err }
