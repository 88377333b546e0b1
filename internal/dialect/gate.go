package dialect

// Gate holds the statements that keep an aggregate's versions in order.
type Gate struct {
	// Returning is true where StepAggregate returns the row, in the columns of SelectAggregate.
	Returning bool

	// AdvanceAggregate brings an aggregate that stands at the version before, and for which
	// nothing waits, to the next one. It changes a row or none.
	AdvanceAggregate string

	// StepAggregate makes or locks the row of an aggregate, and advances it to a version if
	// the one it has is at least, and below, what is said. Arguments: consumer, aggregate;
	// the version, the first version, token, message id and payload hash of a new row;
	// from, below, version.
	StepAggregate    string
	SelectAggregate  string
	RetreatAggregate string

	// LockAggregate returns the row in the columns of SelectAggregate, and none where somebody has locked it.
	LockAggregate string

	// Messages that wait for a version. HoldMessage takes one out of the order of its queue where it
	// is told to, ExpireHeld always: what is parked since its predecessor did not come holds back nobody.
	HoldMessage string
	ExpireHeld  string
	RaiseHeld   string
	ReleaseHeld string

	// CountHeld counts what an aggregate holds, up to a limit.
	CountHeld string

	// SelectHeldAges walks the held messages of a consumer by their ids, a page at a time, and says of each whether it has waited
	// too long; SelectExpired reads those. An index on due_at would lead through everything that is due. LockHeld
	// returns which of them nobody else has.
	SelectHeldAges string
	SelectExpired  string
	LockHeld       string

	// SelectWaiting lists what is held behind an aggregate, SelectApplied how far aggregates are.
	SelectWaiting string
	SelectApplied string

	// Operators. SetVersion makes or locks the row of an aggregate, and never takes it back.
	SetVersion       string
	SelectVersions   string
	DeleteVersions   string
	ReleaseAll       string // some by their ids, whatever aggregate they wait for
	SelectForgetable string
	LowerPurgeLine   string
}

// Blobs holds the statements for payloads that are kept outside the rows of their messages.
type Blobs struct {
	// InsertBlob waits for another transaction that holds the name, and does nothing where
	// the name is there.
	InsertBlob     string
	SelectBlob     string
	SelectReferred string
	SelectNames    string
	DeleteBlob     string
}

// NeverDue is a delay, in microseconds, after which nobody waits any more.
const NeverDue = 100 * 365 * 24 * 3600 * 1_000_000
