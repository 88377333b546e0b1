// Package dialect holds the SQL statements for each database, and the schemas. All other packages are written
// once, against [Dialect].
//
// A statement that databases share is in common.go or below the type of its group; the differences of a database
// are in postgres*.go, mysql*.go or sqlite*.go. {now} in a statement is the server's time in UTC microseconds, {charset}
// what is wrong with the connection's character set, or empty. A shared statement writes its arguments as ?, or as ?1 if
// it needs one twice.
package dialect

import (
	"cmp"
	"embed"
	"reflect"
	"regexp"
	"strings"
	"sync"
)

//go:embed postgres/*.sql mysql/*.sql sqlite/*.sql
var schemas embed.FS

// Names of the databases.
const (
	PostgresName = "postgres"
	MySQLName    = "mysql"
	SQLiteName   = "sqlite"
)

// Dialect is the statements for one database. A statement takes its arguments in the same
// order in every dialect. For IN (?) it takes a list, which [Dialect.In] expands.
type Dialect struct {
	Name string

	// BindType is the form of the placeholders, a constant of sqlx.
	BindType int

	clock   string // the expression for {now}
	charset string // the expression for {charset}: empty if the connection carries texts and statements as they are

	// OneWriter is true if only one transaction can write at a time.
	OneWriter bool

	// CommitsOnDDL is true if a schema statement commits the open transaction.
	CommitsOnDDL bool

	// Schema bookkeeping.
	LockMigrations string
	CreateVersions string
	SelectVersion  string
	InsertVersion  string

	// SelectHidden returns the schema of the tables and the one in which new ones would be made, if it comes first and so
	// would hide them. It is empty where a connection has no search path.
	SelectHidden string

	// SelectLacking returns the schema that the user has named, if there is none of that name. Empty where the connection
	// names the database.
	SelectLacking string

	// The server. SelectBackend names the server process behind a connection. SelectColumns
	// returns each column with its table, that table's kind of storage, and the rights that the role has on the column,
	// on MySQL without DELETE. SelectRole returns the role as GRANT has it.
	Now             string
	SelectIdentity  string
	SelectIsolation string
	SelectSettings  string
	SelectBackend   string
	SelectRole      string
	SelectColumns   string

	// SelectSizes returns the number of rows of each table, -1 if it is not known, and whether
	// the number is an estimate.
	SelectSizes string

	// SelectOutgrown returns the statements that renew the planner's statistics of tables that have grown
	// far beyond them, except those of the outbox.
	SelectOutgrown string
	// SelectUnanalysed returns those of these tables whose statistics the user may not renew.
	SelectUnanalysed string

	// Consumers.
	InsertConsumer  string
	SelectConsumer  string
	SelectConsumers string
	UpdateConsumer  string
	SetKeySource    string // of a consumer that has none
	RaiseRetention  string // if it is below the last argument, and not 0, which is for ever
	LockConsumer    string
	SelectPurgeLine string
	RaisePurgeLine  string
	NotePurge       string

	// Claims. If ClaimChanges is true, a Claim that conflicts changes the row of the other, and must be rolled back.
	ClaimChanges   bool
	Claim          string
	Lookup         string
	Retake         string
	RetakeClaims   string // of stored messages, whose hashes stay
	SelectClaim    string
	SelectClaims   string // of several keys
	SelectHeld     string
	FailUnlessHeld string // only MySQL needs it: fails with an error that is NotHeld unless this transaction holds the claim
	ClaimFormer    string // claims the key that the message had in the epoch before, as superseded
	DropClaims     string // of several keys
	OpenClaim      string // waits for a transaction that holds the claim; does not change a completed claim
	ReopenClaim    string // of several keys
	CloseClaim     string

	// Outcomes and results.
	InsertOutcome  string
	DeleteOutcomes string
	SelectOutcomes string // without their messages
	SelectOutcome  string
	PutResult      string

	// Open messages.
	InsertMessage string
	TouchMessage  string
	MoveMessage   string
	DeleteMessage string
	SelectMessage string

	// A message's story.
	StoryClaims   string
	StoryMessages string
	StoryAudit    string
	StoryDropped  string
	InsertAudit   string
	InsertDropped string

	// The janitor.
	SelectClaimsPage string
	CountExpired     string
	LockExpired      string
	DeleteClaims     string
	DeleteResults    string
	SelectShadowed   string
	DeleteMessages   string
	PurgeDropped     string
	PurgeLeases      string

	// Figures of each minute. AddActivity takes the figures, then a namespace, a name
	// and an epoch.
	AddActivity    string
	SelectActivity string
	PurgeActivity  string

	// Stores whose background work runs. BeatProcess takes for how long the Store has been there. SelectProcesses takes
	// a namespace, a name, twice, and the token behind which to begin.
	BeatProcess     string
	LeaveProcess    string
	SelectProcesses string
	PurgeProcesses  string

	// Leases of middleware.Deduplicate.
	AcquireLease string
	SelectLease  string
	ConfirmLease string
	ExtendLease  string
	ReleaseLease string

	Outbox  Outbox  // package outbox
	Gate    Gate    // the order of versions
	Queue   Queue   // the delivery of open messages
	Remedy  Remedy  // the operators' view of open messages, and their decisions
	Blobs   Blobs   // payloads that are stored outside their rows
	Journal Journal // completed messages that are kept whole
	Replays Replays // package replay
	Steps   Steps   // the handlers' calls outside of their transactions
	History History // failures and delays of a message

	scripts []string
	read    func() []Table // the tables of scripts
}

var (
	table = regexp.MustCompile(`\bmillrace_`)
	index = regexp.MustCompile(`\bix_millrace_`)
)

// For returns the dialect of the named database, with statements for these table names.
// It returns nil if it does not know the database.
func For(name string, names Names) *Dialect {
	fill, known := filled[name]
	if !known {
		return nil
	}
	d := fill()
	d.scripts = readScripts(name)
	d.render(names)
	d.read = sync.OnceValue(d.readTables)
	return &d
}

// filled has each database's dialect with the statements that all databases share, but no names. It is made
// once: most of the time of For would go there.
var filled = map[string]func() Dialect{
	PostgresName: sync.OnceValue(func() Dialect { return complete(postgres) }),
	MySQLName:    sync.OnceValue(func() Dialect { return complete(mysql) }),
	SQLiteName:   sync.OnceValue(func() Dialect { return complete(sqlite) }),
}

func complete(d Dialect) Dialect {
	d.fill(reflect.ValueOf(&d).Elem(), reflect.ValueOf(common))
	return d
}

// fill copies into own each shared statement that own lacks.
func (d *Dialect) fill(own, shared reflect.Value) {
	for i := range own.NumField() {
		switch f := own.Field(i); {
		case f.Kind() == reflect.Struct:
			d.fill(f, shared.Field(i))
		case f.Kind() == reflect.String && f.CanSet() && f.IsZero():
			f.SetString(d.bind(shared.Field(i).String()))
		}
	}
}

// render puts the clock and the user's names into every statement, once.
func (d *Dialect) render(names Names) {
	prefix := names.Prefix
	qualified := prefix
	if names.Schema != "" {
		qualified = `"` + names.Schema + `".` + prefix
	}
	rename := func(s string) string {
		if qualified == DefaultPrefix {
			return s // the statements are written with these names
		}
		s = index.ReplaceAllString(s, "ix_"+prefix)
		return table.ReplaceAllString(s, qualified)
	}
	values := strings.NewReplacer("{now}", d.clock, "{charset}", cmp.Or(d.charset, `''`))
	for _, group := range []any{d, &d.Outbox, &d.Gate, &d.Queue, &d.Remedy, &d.Blobs, &d.Journal, &d.Replays, &d.Steps, &d.History} {
		fields := reflect.ValueOf(group).Elem()
		for i := range fields.NumField() {
			if f := fields.Field(i); f.Kind() == reflect.String && f.CanSet() {
				f.SetString(rename(values.Replace(f.String())))
			}
		}
	}
	// Queries of the catalogue compare names, so they need the bare prefix.
	for _, query := range []*string{&d.SelectHidden, &d.SelectLacking, &d.SelectColumns, &d.SelectSizes, &d.SelectOutgrown, &d.SelectUnanalysed} {
		*query = strings.NewReplacer("{prefix}", prefix, "{schema}", names.Schema).Replace(*query)
	}
	d.Outbox.name(qualified)
	for i := range d.scripts {
		d.scripts[i] = rename(d.scripts[i])
	}
}

func readScripts(name string) []string {
	entries, err := schemas.ReadDir(name)
	if err != nil {
		panic(err) // embedded: cannot be missing
	}
	var scripts []string
	for _, e := range entries { // sorted by name, so by version
		text, err := schemas.ReadFile(name + "/" + e.Name())
		if err != nil {
			panic(err)
		}
		scripts = append(scripts, string(text))
	}
	return scripts
}

// outlineColumns is the columns that the statements on open messages select. They are spelled out,
// so that a column that a later release adds does no harm. messageColumns adds the payload.
const (
	outlineColumns = `m.id, m.consumer, m.message_id, m.status, m.attempts, m.topic, m.partition_no, m.offset_no,
			m.order_key, m.event_type, m.event_version, m.uuid, m.metadata, m.payload_hash, m.received_at,
			m.due_at, m.lease_token, m.last_error, m.error_group, m.error_code, m.reason, m.reason_code, m.original,
			m.aggregate, m.version, m.payload_form, m.payload_ref`
	messageColumns = outlineColumns + `, m.payload`
)
