// Package dialect holds the statements of each database, beside the schema they work on. All Go logic is written
// once, against [Dialect].
//
// What databases say alike stands once, in common.go and below the type of each group of statements; what one of them
// says otherwise stands in postgres*.go, mysql*.go or sqlite*.go. {now} in a statement is the time on the server,
// in UTC microseconds. A shared statement writes its arguments ?, or ?1 if it needs one twice.
package dialect

import (
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

// Dialect is how one database says what Millrace needs. Statements are named for what
// they do; their arguments stand in the same order in every dialect. A statement with
// IN (?) takes a list there, expanded by [Dialect.In].
type Dialect struct {
	Name string

	// BindType is how sqlx writes placeholders.
	BindType int

	clock string // what {now} stands for

	// OneWriter is true where a transaction that writes excludes every other.
	OneWriter bool

	// CommitsOnDDL is true where a schema statement ends the transaction it stands in.
	CommitsOnDDL bool

	// Schema bookkeeping.
	LockMigrations string
	CreateVersions string
	SelectVersion  string
	InsertVersion  string

	// The server. SelectBackend names the server process behind a connection; columns come
	// with their table and how it is stored.
	Now             string
	SelectIdentity  string
	SelectIsolation string
	SelectSettings  string
	SelectBackend   string
	SelectColumns   string

	// SelectSizes tells how many rows a table has, -1 where that is not known, and whether the
	// database only believes so.
	SelectSizes string

	// SelectOutgrown gives the statements that bring up to date what the planner knows of tables that have
	// grown far beyond it, but for the outbox's.
	SelectOutgrown string
	// SelectUnanalysed gives those of these tables for which the user may not do that.
	SelectUnanalysed string

	// Consumers.
	InsertConsumer  string
	SelectConsumer  string
	SelectConsumers string
	UpdateConsumer  string
	LockConsumer    string
	SelectPurgeLine string
	RaisePurgeLine  string
	NotePurge       string

	// Claims.
	Claim       string
	Lookup      string
	Retake      string
	SelectClaim string
	SelectHeld  string
	ClaimFormer string // the key that the message had in the epoch before: superseded by its new one
	DropFormer  string
	OpenClaim   string // waits for who has the claim; the token of one that is completed stays its holder's
	ReopenClaim string
	CloseClaim  string

	// Outcomes and results.
	InsertOutcome  string
	DeleteOutcomes string
	SelectOutcomes string
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

	// What was done, minute by minute. AddActivity takes the figures, then a namespace, a name
	// and an epoch.
	AddActivity    string
	SelectActivity string
	PurgeActivity  string

	// Leases of middleware.Deduplicate.
	AcquireLease string
	SelectLease  string
	ConfirmLease string
	ExtendLease  string
	ReleaseLease string

	// Outbox is what package outbox needs, Gate the order of versions, Queue the delivery of
	// open messages, Remedy what operators see of them, and do, Blobs their payloads where
	// they are kept elsewhere, Journal what was completed and is kept whole, Replays what is sent
	// again, Steps what handlers do outside of their transactions, History what went wrong with a message.
	Outbox  Outbox
	Gate    Gate
	Queue   Queue
	Remedy  Remedy
	Blobs   Blobs
	Journal Journal
	Replays Replays
	Steps   Steps
	History History

	scripts []string
	read    func() []Table // the tables of scripts
}

var (
	table = regexp.MustCompile(`\bmillrace_`)
	index = regexp.MustCompile(`\bix_millrace_`)
)

// For returns the dialect of the named database, its statements rendered for names.
// It returns nil for a name it does not know.
func For(name string, names Names) *Dialect {
	var d Dialect
	switch name {
	case PostgresName:
		d = postgres
	case MySQLName:
		d = mysql
	case SQLiteName:
		d = sqlite
	default:
		return nil
	}
	d.scripts = readScripts(name)
	d.fill(reflect.ValueOf(&d).Elem(), reflect.ValueOf(common))
	d.render(names)
	d.read = sync.OnceValue(d.readTables)
	return &d
}

// fill gives own the statements that it does not say otherwise.
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
			return s // as they are written
		}
		s = index.ReplaceAllString(s, "ix_"+prefix)
		return table.ReplaceAllString(s, qualified)
	}
	for _, group := range []any{d, &d.Outbox, &d.Gate, &d.Queue, &d.Remedy, &d.Blobs, &d.Journal, &d.Replays, &d.Steps, &d.History} {
		fields := reflect.ValueOf(group).Elem()
		for i := range fields.NumField() {
			if f := fields.Field(i); f.Kind() == reflect.String && f.CanSet() {
				f.SetString(rename(strings.ReplaceAll(f.String(), "{now}", d.clock)))
			}
		}
	}
	// Queries of the catalogue compare names, so there the bare prefix stands.
	for _, query := range []*string{&d.SelectColumns, &d.SelectSizes, &d.SelectOutgrown, &d.SelectUnanalysed} {
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

// outlineColumns is what the statements on open messages select, spelled out so that a
// column added by a later release does not disturb this one; messageColumns adds the payload.
const (
	outlineColumns = `m.id, m.consumer, m.message_id, m.status, m.attempts, m.topic, m.partition_no, m.offset_no,
			m.order_key, m.event_type, m.event_version, m.uuid, m.metadata, m.payload_hash, m.received_at,
			m.due_at, m.lease_token, m.last_error, m.error_group, m.error_code, m.reason, m.reason_code, m.original,
			m.aggregate, m.version, m.payload_form, m.payload_ref`
	messageColumns = outlineColumns + `, m.payload`
)
