package watermillsql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/owned"
)

// database is what differs between PostgreSQL and MySQL. The SQL of this package is in
// postgres.go and mysql.go, and not in internal/dialect, since its tables are watermill-sql's.
type database struct {
	name    string
	quote   string
	maxName int // the length of the longest table name

	lock           string   // taken by whoever makes tables, until its transaction ends
	createMessages string   // of the quoted table %s
	createOffsets  string   // of the quoted table %s
	enrolled       string   // selects the name in the row of a group in the quoted table %s
	enroll         string   // adds the row of a group to the quoted table %s
	turn           string   // locks the publishers' row in the quoted table of offsets %s; empty if not needed
	insert         string   // into the quoted table %s, without rows
	row            string   // of three placeholders; %d where they are numbered
	columns        string   // selects name, type and length of the columns of the table with this name
	messageColumns []string // those that watermill-sql reads and writes
	offsetColumns  []string
	lowerCase      string   // selects whether names of tables become lower-case; empty if they never do
	maxPacket      string   // selects how many bytes a statement may have; empty if there is no such limit
	binary         []string // types of columns that take any bytes, up to their length
	padded         string   // type of columns that change what is shorter than they are; empty if there is none
	json           []string // types of columns that take JSON only
	shown          string   // shows how the quoted table %s was made; empty if the types say which columns take JSON only
	widen          string   // changes in the quoted table %s the column %s to the type %s
	blob, varchar  string   // the types of payload and uuid, as widen wants them

	schema        func(batch int) wmsql.SchemaAdapter
	offsetAdapter wmsql.OffsetsAdapter
}

// detect returns the database with this name or, without one, that of db.
func detect(db *sqlx.DB, name string) (*database, error) {
	if name == "" {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		var err error
		if name, err = dialect.Detect(ctx, db); err != nil {
			return nil, fmt.Errorf("watermillsql: cannot tell which database this is: set Dialect: %w", err)
		}
	}
	switch name {
	case dialect.PostgresName:
		return &postgres, nil
	case dialect.MySQLName:
		return &mysql, nil
	}
	return nil, fmt.Errorf("watermillsql: watermill-sql v3 does not support %s: use PostgreSQL, MySQL or MariaDB", name)
}

// Schema returns the DDL of the topics' tables, for services that keep migrations of their own.
// The dialect is "postgres" or "mysql".
func Schema(dialectName string, topics ...string) (string, error) {
	var d *database
	switch dialectName {
	case dialect.PostgresName:
		d = &postgres
	case dialect.MySQLName:
		d = &mysql
	default:
		return "", fmt.Errorf("watermillsql: schema: dialect %q is not one of postgres, mysql", dialectName)
	}
	if err := d.checkTopics(topics); err != nil {
		return "", errorf("schema: %w", err)
	}
	var script string
	for _, topic := range topics {
		script += d.ddlMessages(topic) + ";\n\n" + d.ddlOffsets(topic) + ";\n\n"
	}
	return script, nil
}

func (d *database) ddlMessages(topic string) string {
	return fmt.Sprintf(d.createMessages, d.messages(topic))
}

func (d *database) ddlOffsets(topic string) string {
	return fmt.Sprintf(d.createOffsets, d.offsets(topic))
}

// initialize makes the tables that are missing. Our processes take turns. If watermill-sql makes
// the same table at the same time, or on PostgreSQL one whose index would have the same name, a
// statement fails and succeeds when retried.
func (d *database) initialize(ctx context.Context, db *sqlx.DB, topics []string) error {
	const tries = 5
	if err := d.checkTopics(topics); err != nil {
		return err
	}
	for _, topic := range topics {
		var failure error
		_, err := d.inspect(ctx, db, topic)
		for try := 0; try < tries && errors.Is(err, ErrNoTable); try++ {
			failure = d.create(ctx, db, topic)
			_, err = d.inspect(ctx, db, topic)
		}
		if err != nil {
			return errors.Join(err, failure)
		}
	}
	return nil
}

// create makes the tables of a topic, on PostgreSQL both or none.
func (d *database) create(ctx context.Context, db *sqlx.DB, topic string) error {
	tx, err := owned.Begin(ctx, db, nil, false)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after the commit it does nothing
	for _, statement := range []string{d.lock, d.ddlMessages(topic), d.ddlOffsets(topic)} {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// enrollGroup adds the row that holds a consumer group's progress, on MySQL. It first looks
// without a lock, since a working consumer has the row locked. In a table that watermill-sql made,
// the row may be that of a group whose name the table takes for the same.
func (d *database) enrollGroup(ctx context.Context, db *sqlx.DB, topic, group string) error {
	if d.enroll == "" {
		return nil
	}
	found, err := d.enrolledAs(ctx, db, topic, group)
	if err == nil && found == "" {
		if _, err := db.ExecContext(ctx, fmt.Sprintf(d.enroll, d.offsets(topic)), group); err != nil {
			return fmt.Errorf("add consumer group %q: %w", group, err)
		}
		found, err = d.enrolledAs(ctx, db, topic, group)
	}
	if err != nil {
		return fmt.Errorf("look for consumer group %q: %w", group, err)
	}
	if found != "" && found != group {
		return fmt.Errorf("consumer group %q would share the offset of group %q, since the table takes their names for the same, "+
			"and each would miss what the other acks: if the two are one group, call it %[2]q; else choose another name, or tell them apart, "+
			"and %[1]q begins with the oldest message: %[3]s",
			group, found, fmt.Sprintf(d.widen, d.offsets(topic), "consumer_group", d.varchar))
	}
	return nil
}

// enrolledAs returns the name in a group's row, or "" without one.
func (d *database) enrolledAs(ctx context.Context, db *sqlx.DB, topic, group string) (found string, err error) {
	err = db.GetContext(ctx, &found, fmt.Sprintf(d.enrolled, d.offsets(topic)), group)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return found, err
}
