package dialect

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/millrace-go/millrace/internal/owned"
)

// Kind is what an error of the database means for the caller.
type Kind int

// Kinds of errors.
const (
	Other         Kind = iota
	Contention         // deadlock, serialization failure, lock wait: try again in a new transaction
	Unavailable        // the server is gone, refuses logins, or has no room: wait
	Unready            // a privilege or an object is missing or in a wrong state, or a statement was wrong
	NoTable            // the schema has not been migrated
	ReadOnly           // the database accepts no writes
	TooLarge           // more bytes than the server or the driver accepts at once
	NoTransaction      // the server has ended the transaction of the statement
)

// Down reports whether an error of this kind says that the database does not serve us for now. It is
// meant for errors of our own statements: a user's statement may have caused such an error itself.
func (k Kind) Down() bool {
	return k == Unavailable || k == Unready || k == NoTable || k == ReadOnly
}

// Full reports whether err says that the database has no room, or cannot write. Very small statements
// may then still succeed.
func Full(err error) bool {
	for ; err != nil; err = unwrap(err) {
		if e, ok := err.(interface{ SQLState() string }); ok { //nolint:errorlint // walks the tree itself
			return e.SQLState() == "53100" || e.SQLState() == "58030"
		}
		code, ok := number(err)
		if sqlite := ok && ofSQLite(err); sqlite {
			return code&0xff == 10 || code&0xff == 13
		} else if ok {
			return code == 1021 || code == 1026 || code == 1030 || code == 1114
		}
	}
	return false
}

// Denied reports whether err says that the role lacks a right.
func Denied(err error) bool {
	for ; err != nil; err = unwrap(err) {
		if e, ok := err.(interface{ SQLState() string }); ok { //nolint:errorlint // walks the tree itself
			return e.SQLState() == "42501"
		}
		code, ok := number(err)
		if sqlite := ok && ofSQLite(err); sqlite {
			return code&0xff == 3 || code&0xff == 23
		} else if ok {
			return code == 1142 || code == 1143
		}
	}
	return false
}

// Cut reports whether err says that the server ended a statement that was at work: at a limit such as statement_timeout or
// max_statement_time, or because somebody cancelled it. Some drivers return such an error at the end of a context, too.
func Cut(err error) bool {
	switch e := err.(type) { //nolint:errorlint // walks the tree itself
	case nil:
		return false
	case interface{ SQLState() string }:
		return e.SQLState() == "57014"
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), Cut)
	}
	if code, ok := number(err); ok {
		return !ofSQLite(err) && (code == 1317 || code == 1969 || code == 3024)
	}
	return Cut(errors.Unwrap(err))
}

// NotHeld reports whether err says that FailUnlessHeld found no claim: its number is out of range.
func NotHeld(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if code, some := number(err); some && code == 1690 {
			return true
		}
	}
	return false
}

// Aborted reports whether err says that the database ignored all statements after one that failed, and
// did not commit the transaction. When COMMIT reports that, pgx and lib/pq return errors of their own.
func Aborted(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if e, ok := err.(interface{ SQLState() string }); ok { //nolint:errorlint // walks the tree itself
			return e.SQLState() == "25P02"
		}
		switch strings.ToLower(err.Error()) { // lib/pq 1.10 begins with a capital letter
		case "commit unexpectedly resulted in rollback", "pq: could not complete operation in a failed transaction":
			return true
		}
	}
	return false
}

// ErrHidden says why a transaction was not committed whose error is [Aborted].
var ErrHidden = errors.New("a statement failed and its error was not returned, so the database refused all statements after it and rolled the " +
	"transaction back: return the error, or set a SAVEPOINT before a statement that may fail")

// Unhide wraps an error that is [Aborted] with [ErrHidden], which says what to do. It returns others unchanged.
func Unhide(err error) error {
	if Aborted(err) {
		return fmt.Errorf("%w: %w", ErrHidden, err)
	}
	return err
}

func ofSQLite(err error) bool {
	return strings.Contains(strings.ToLower(reflect.TypeOf(err).String()), "sqlite")
}

// Classify returns the kind of err. It imports no driver: pgx and lib/pq return the SQLSTATE
// from a method, go-sql-driver and mattn have numbers in fields, modernc returns its code from
// a method.
func Classify(err error) Kind {
	if err == nil {
		return Other
	}
	for ; err != nil; err = unwrap(err) {
		if kind := classifyOne(err); kind != Other {
			return kind
		}
	}
	return Other
}

func unwrap(err error) error {
	if next := errors.Unwrap(err); next != nil {
		return next
	}
	if many, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // walks the tree itself
		for _, next := range many.Unwrap() {
			if Classify(next) != Other {
				return next
			}
		}
	}
	return nil
}

func classifyOne(err error) Kind {
	switch err { //nolint:errorlint // walks the tree itself
	case driver.ErrBadConn, sql.ErrConnDone, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, owned.ErrUnanswered: //nolint:errorlint // the same
		return Unavailable
	case context.Canceled, context.DeadlineExceeded:
		return Other
	}
	switch e := err.(type) { //nolint:errorlint // walks the tree itself
	case interface{ SQLState() string }:
		return postgresKind(e.SQLState())
	case syscall.Errno:
		return Unavailable
	case *net.OpError, *net.DNSError:
		return Unavailable
	}
	if code, ok := number(err); ok {
		if ofSQLite(err) {
			return sqliteKind(code, err.Error())
		}
		return mysqlKind(code, err.Error())
	}
	switch err.Error() {
	case "packet for query is too large. Try adjusting the `Config.MaxAllowedPacket`": // go-sql-driver, untyped too
		return TooLarge
	case "invalid connection", "bad connection", // go-sql-driver: untyped; from BeginTx
		"conn closed",             // pgx, at the second use of a connection that broke
		"sql: database is closed": // database/sql does not export it
		return Unavailable
	}
	return Other
}

// Refused reports whether err carries a server's code, and is of no other kind.
func Refused(err error) bool {
	if Classify(err) != Other {
		return false
	}
	var state interface {
		error
		SQLState() string
	}
	if errors.As(err, &state) {
		return true
	}
	for ; err != nil; err = errors.Unwrap(err) {
		if _, coded := number(err); coded {
			return true
		}
	}
	return false
}

// alreadyMade reports whether MySQL already has the column or the key: an earlier, interrupted run of the migration made it.
func alreadyMade(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if code, some := number(err); some && (code == 1060 || code == 1061) {
			return true
		}
	}
	return false
}

// TooLong reports whether a value is too long for its column, on MySQL and MariaDB.
func TooLong(err error) bool {
	if code, some := number(err); some && code == 1406 {
		return true
	}
	switch e := err.(type) { //nolint:errorlint // walks the tree itself
	case interface{ Unwrap() error }:
		return TooLong(e.Unwrap())
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), TooLong)
	}
	return false
}

// number returns a driver error's code, from its method or its field.
func number(err error) (int64, bool) {
	if e, ok := err.(interface{ Code() int }); ok { //nolint:errorlint // walks the tree itself
		return int64(e.Code()), true
	}
	v := reflect.ValueOf(err)
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return 0, false
	}
	for _, name := range []string{"Number", "Code"} {
		switch f := v.FieldByName(name); {
		case !f.IsValid():
		case f.CanInt():
			return f.Int(), true
		case f.CanUint():
			return int64(f.Uint()), true //nolint:gosec // MySQL's numbers have sixteen bits
		}
	}
	return 0, false
}

func postgresKind(state string) Kind {
	switch {
	case state == "40001", state == "40P01", state == "55P03":
		return Contention
	case state == "42P01", state == "3F000", state == "42703":
		return NoTable
	case state == "25006":
		return ReadOnly
	case state == "25P01":
		return NoTransaction
	case state == "54000":
		return TooLarge
	case strings.HasPrefix(state, "08"), strings.HasPrefix(state, "57P"), state == "25P03",
		strings.HasPrefix(state, "53"), strings.HasPrefix(state, "58"),
		strings.HasPrefix(state, "28"), state == "3D000":
		return Unavailable
	case state == "55000", state == "42501":
		return Unready
	}
	return Other
}

func mysqlKind(code int64, text string) Kind {
	switch code {
	case 1205, 1213, 1020:
		return Contention
	case 1146, 1054:
		return NoTable
	case 1290, 1792, 1836:
		return ReadOnly
	case 1153:
		return TooLarge
	case 1690: // Outbox.Insert computes a number out of range on purpose, and the message shows how
		if strings.Contains(text, "1 - @@in_transaction") {
			return NoTransaction
		}
	case 1305: // our savepoint is gone; its name is in the message in every language
		if strings.Contains(text, StandsSavepoint) {
			return NoTransaction
		}
	case 1105: // "unknown error"
		if strings.Contains(text, "max_allowed_packet") {
			return TooLarge
		}
	case 1044, 1045, 1049, 1129, 1130, 1698, 1862, 3118, 4151, // the server refuses the login
		1021, 1026, 1030, 1114, // no room, or the disk fails
		1047, 1180, // a node of Galera is cut off from the others; 1180 answers its COMMIT
		1040, 1053, 1077, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1226, 1317, 1927, 2002, 2003, 2006, 2013, 3024, 4031:
		return Unavailable
	case 1046, 1142, 1143:
		return Unready
	}
	return Other
}

func sqliteKind(code int64, text string) Kind {
	switch code & 0xff {
	case 5, 6:
		return Contention
	case 8:
		return ReadOnly
	case 18:
		return TooLarge
	case 10, 11, 13, 14, 26:
		return Unavailable
	case 3, 23:
		return Unready
	case 1:
		if strings.Contains(text, "no such table") || strings.Contains(text, "no such column") || strings.Contains(text, "no such index") {
			return NoTable
		}
	}
	return Other
}
