package payload_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/inbox/payload"
	millrace "github.com/millrace-go/millrace/middleware"
)

// personKeys is a key for each person, in a table. Who was erased has none: nobody opens what was
// sealed with it, and the row stays, so that no late copy of a message makes a new one.
type personKeys struct{ db *sqlx.DB }

// in is the transaction in which a message is stored, where there is one.
func (k personKeys) in(ctx context.Context) sqlx.ExtContext {
	if tx, err := inbox.Tx(ctx); err == nil {
		return tx
	}
	return k.db
}

func (k personKeys) SealKey(ctx context.Context, info payload.Info) (id string, key []byte, err error) {
	fresh := make([]byte, 32)
	_, _ = rand.Read(fresh)
	_, err = k.in(ctx).ExecContext(ctx, `INSERT INTO person_key (id, person, secret) VALUES (?, ?, ?) ON CONFLICT (person) DO NOTHING`,
		rand.Text(), info.Metadata.Get("person"), fresh)
	if err != nil {
		return "", nil, err
	}
	err = k.in(ctx).QueryRowxContext(ctx, `SELECT id, secret FROM person_key WHERE person = ?`, info.Metadata.Get("person")).Scan(&id, &key)
	if err == nil && key == nil {
		err = inbox.ErrErased
	}
	return id, key, err
}

func (k personKeys) OpenKey(ctx context.Context, _ payload.Info, id string) (key []byte, err error) {
	err = sqlx.GetContext(ctx, k.in(ctx), &key, `SELECT secret FROM person_key WHERE id = ?`, id)
	if err == nil && key == nil {
		err = inbox.ErrErased
	}
	return key, err
}

// Crypto-shredding: what is stored of a person is sealed with the person's key, so emptying
// that one key erases it, wherever else it was copied, backups of the messages included. Keep
// the keys out of those backups.
func ExampleAESGCM() {
	db, _, done := exampleStore(inbox.Config{},
		`CREATE TABLE person_key (id TEXT PRIMARY KEY, person TEXT UNIQUE, secret BLOB)`)
	defer done()

	codec, err := payload.NewAESGCM(personKeys{db})
	check(err)
	store, err := inbox.NewStore(db, inbox.Config{Payloads: codec})
	check(err)
	handler := millrace.Inbox{Store: store, Consumer: "billing", Options: inbox.Options{RecordFailures: true}}.Middleware(
		func(*message.Message) ([]*message.Message, error) { return nil, errors.New("the bank is closed") })
	for _, person := range []string{"alice", "bob"} {
		msg := message.NewMessage("order of "+person, []byte(person+"'s address"))
		msg.Metadata.Set("person", person)
		_, _ = handler(msg) // fails, and is stored
	}

	_, err = db.Exec(`UPDATE person_key SET secret = NULL WHERE person = 'alice'`)
	check(err)

	failed, err := admin.New(store).Find(context.Background(), admin.Filter{Status: admin.FailedRetryable}, 0, 10)
	check(err)
	for _, m := range failed {
		fmt.Printf("%s: %q, erased: %v\n", m.UUID, m.Payload, errors.Is(m.Unreadable, inbox.ErrErased))
	}
	// Output:
	// order of alice: "", erased: true
	// order of bob: "bob's address", erased: false
}

// A claim check: payloads of more than 1,000 bytes are files, and their rows stay small.
// Without Blobs they would be in a table of their own.
func ExampleFileBlobs() {
	dir, err := os.MkdirTemp("", "millrace-blobs-")
	check(err)
	defer func() { check(os.RemoveAll(dir)) }()
	blobs, err := payload.NewFileBlobs(dir)
	check(err)
	db, store, done := exampleStore(inbox.Config{Blobs: blobs, BlobsAbove: 1000})
	defer done()

	handler := millrace.Inbox{Store: store, Consumer: "billing", Options: inbox.Options{RecordFailures: true}}.Middleware(
		func(*message.Message) ([]*message.Message, error) { return nil, errors.New("the bank is closed") })
	for _, size := range []int{1000, 1001} {
		_, _ = handler(message.NewMessage(fmt.Sprint(size), []byte(strings.Repeat("x", size))))
	}

	failed, err := admin.New(store).Find(context.Background(), admin.Filter{Status: admin.FailedRetryable}, 0, 10)
	check(err)
	for _, m := range failed {
		var inRow int
		check(db.Get(&inRow, `SELECT LENGTH(payload) FROM millrace_messages WHERE id = ?`, m.ID))
		fmt.Printf("%d bytes, of which in the row: %d\n", len(m.Payload), inRow)
	}
	// Output:
	// 1000 bytes, of which in the row: 1000
	// 1001 bytes, of which in the row: 0
}

// exampleStore opens and migrates a SQLite file, and returns how to remove it.
func exampleStore(config inbox.Config, statements ...string) (db *sqlx.DB, store *inbox.Store, done func()) {
	dir, err := os.MkdirTemp("", "millrace-payload-")
	check(err)
	db, err = sqlx.Open("sqlite", "file:"+filepath.Join(dir, "example.db")+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	check(err)
	store, err = inbox.NewStore(db, config)
	check(err)
	check(store.Migrate(context.Background()))
	for _, s := range statements {
		_, err := db.Exec(s)
		check(err)
	}
	return db, store, func() {
		check(store.Close(context.Background()))
		check(db.Close())
		check(os.RemoveAll(dir))
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
