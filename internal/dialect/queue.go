package dialect

// Queue holds the statements by which open messages are delivered.
type Queue struct {
	StoreMessage  string
	SelectStored  string
	SelectNextDue string // returns also whether it stands in a line
	SelectDue     string
	SelectSettled string

	// SelectFront returns the messages that are due soonest, and which of them wait for another
	// one of their order key. SelectHeads returns the next order keys, and the message
	// that each is to go on with; SelectFree messages without one. LockDue takes some by their ids.
	SelectFront string
	SelectHeads string
	SelectFree  string
	LockDue     string

	// LeaseOut leases messages that are handed out at once. Unlease undoes the lease of one that was
	// charged for the try that follows.
	LeaseMessages string
	LeaseOut      string
	Unlease       string
	HandOut       string
	ExtendLeases  string
	PutBack       string
	MoveLeased    string
	ParkLeased    string // as one that is in no order: it was not tried
	NameLeased    string // gives one that had no key the id of the key it was found to have
	CloseLeased   string
	SettleLeased  string

	// CompleteLeased and DeleteLeased close several that were handled outside the inbox.
	CompleteLeased string
	DeleteLeased   string
	CompleteClaim  string

	// What is open in older epochs is moved to the new one. The statements Adopt… take the
	// new consumer and id, then the old ones.
	SelectOlderEpochs string
	SelectOpen        string
	SelectAdoptable   string
	AdoptMessage      string
	AdoptClaim        string // one that is superseded stays
	KeepClaim         string // leaves a copy of one that is completed: takes the old ones first
	ParkAdopted       string // as a collision, under the id that it was given
	AdoptOutcome      string
	AdoptResult       string
	AdoptJournal      string
	AdoptHistory      string
}
