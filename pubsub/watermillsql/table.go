package watermillsql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"
)

// table says what the table of a topic's messages can take. One that watermill-sql made takes less
// than one of ours.
type table struct {
	uuid    int // characters; 0 for no limit
	payload column
	binary  bool // the payload's column takes any bytes, up to its length
	json    bool // it takes JSON only
	packet  int  // bytes of a statement; 0 for no limit
}

type column struct {
	kind   string
	length int
}

// inspect checks both tables of a topic, and returns what that of its messages can take.
func (d *database) inspect(ctx context.Context, db *sqlx.DB, topic string) (table, error) {
	if d.lowerCase != "" {
		var lower int
		if err := db.GetContext(ctx, &lower, d.lowerCase); err != nil {
			return table{}, fmt.Errorf("read lower_case_table_names: %w", err)
		}
		if err := checkCase(topic, lower); err != nil {
			return table{}, err
		}
	}
	messages, err := d.describe(ctx, db, messagesPrefix+topic, d.messageColumns)
	if err != nil {
		return table{}, err
	}
	if _, err := d.describe(ctx, db, offsetsPrefix+topic, d.offsetColumns); err != nil {
		return table{}, err
	}
	t := table{uuid: messages["uuid"].length, payload: messages["payload"]}
	t.binary = slices.Contains(d.binary, t.payload.kind)
	t.json = slices.Contains(d.json, t.payload.kind)
	if d.shown != "" && !t.binary && !t.json {
		if t.json, err = d.checksJSON(ctx, db, topic); err != nil {
			return table{}, err
		}
	}
	if d.maxPacket != "" {
		if err := db.GetContext(ctx, &t.packet, d.maxPacket); err != nil {
			return table{}, fmt.Errorf("read max_allowed_packet: %w", err)
		}
	}
	return t, nil
}

// checksJSON reports whether the payload's column has the check by which MariaDB makes one of JSON:
// its type is LONGTEXT.
func (d *database) checksJSON(ctx context.Context, db *sqlx.DB, topic string) (bool, error) {
	shown, err := db.QueryRowxContext(ctx, fmt.Sprintf(d.shown, d.messages(topic))).SliceScan()
	if err != nil {
		return false, fmt.Errorf("describe table %s: %w", messagesPrefix+topic, err)
	}
	return strings.Contains(strings.ToLower(fmt.Sprintf("%s", shown)), "json_valid(`payload`)"), nil
}

// describe returns the columns of a table, or an error if a needed one is missing.
func (d *database) describe(ctx context.Context, db *sqlx.DB, name string, needed []string) (
	found map[string]column, err error,
) {
	rows, err := db.QueryContext(ctx, d.columns, d.lookup(name))
	if err != nil {
		return nil, fmt.Errorf("describe table %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	found = map[string]column{}
	for rows.Next() {
		var name string
		var c column
		if err := rows.Scan(&name, &c.kind, &c.length); err != nil {
			return nil, fmt.Errorf("describe table %s: %w", name, err)
		}
		found[name] = c
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("describe table %s: %w", name, err)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("table %s: %w", name, ErrNoTable)
	}
	for _, n := range needed {
		if _, has := found[n]; !has {
			return nil, fmt.Errorf("table %s has no column %s, so it is not one of watermill-sql v3: "+
				"rename it, and call Initialize", name, n)
		}
	}
	return found, nil
}

// lookup returns a table's name as the statement columns takes it.
func (d *database) lookup(name string) string {
	if d == &postgres {
		return d.quoted(name) // to_regclass folds names without quotes
	}
	return name
}

// remedy returns the statement that makes a column of watermill-sql's table as wide as ours.
func (d *database) remedy(topic, name, kind string) string {
	return fmt.Sprintf(d.widen, d.messages(topic), name, kind)
}
