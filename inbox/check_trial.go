package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/internal/keycode"
)

// errTrialOver rolls the trial back.
var errTrialOver = errors.New("the trial is over")

// errUnread says that bytes come back from the database as others.
var errUnread = errors.New("it does not read bytes as they were written")

// trial claims a key twice, as a delivery and its copy would, in a transaction that it rolls
// back. It finds a missing privilege, a read-only server and a table without its primary key
// before a message does.
func (c *inspection) trial(ctx context.Context) error {
	if c.failed() {
		return nil
	}
	s := c.store
	const nobody = 0 // consumers have positive ids
	key := keycode.Encode(fmt.Sprintf("check %x %x", rand.Uint64(), rand.Uint64()))
	won := make([]bool, 0, 2)
	err := s.db.Write(ctx, func(tx *sqlx.Tx) error {
		won = won[:0]
		for token := range int64(2) {
			rows, err := database.Affected(tx.ExecContext(ctx, s.dialect.Claim, nobody, key, 0, token+1))
			if err != nil {
				return err
			}
			won = append(won, rows == 1)
		}
		if err := s.readsClaim(ctx, tx, nobody, key); err != nil {
			return err
		}
		return errTrialOver
	})
	claims := s.config.TablePrefix + "claims"
	switch kind := dialect.Classify(err); {
	case errors.Is(err, errTrialOver) && won[0] && !won[1]:
		return nil
	case errors.Is(err, errTrialOver):
		c.fail(claims, fmt.Sprintf("two claims of one key succeeded as %v, not [true false]", won),
			"its primary key must be (consumer, message_id): compare the table with Store.Schema()")
	case errors.Is(err, errUnread):
		c.fail("driver", err.Error(), "with pgx in the modes exec and simple_protocol, set bytea_output to hex, in the connection string "+
			"or by ALTER ROLE … SET")
	case ctx.Err() != nil || kind == dialect.Unavailable || kind == dialect.Contention:
		return fmt.Errorf("try a claim: %w", err)
	case kind == dialect.ReadOnly:
		c.fail("server", fmt.Sprintf("it takes no writes (%v)", err), "give the inbox the primary server, "+
			"a user who may write, and a connection string that does not ask for read-only")
	default:
		c.fail(claims, fmt.Sprintf("a trial claim failed (%v)", err),
			"let the user SELECT, INSERT, UPDATE and DELETE on all tables, and compare them with Store.Schema()")
	}
	return nil
}

// readsClaim returns errUnread if the driver reads the key of a claim as another one.
func (s *Store) readsClaim(ctx context.Context, tx *sqlx.Tx, consumer int32, key []byte) error {
	query, args, err := s.dialect.In(s.dialect.SelectClaims, consumer, [][]byte{key})
	if err != nil {
		return err
	}
	var read []byte
	switch err := tx.QueryRowContext(ctx, query, args...).Scan(&read, new(int64)); {
	case dialect.Classify(err) != dialect.Other || dialect.Refused(err):
		return err
	case err != nil:
		return fmt.Errorf("%w (%v)", errUnread, err) //nolint:errorlint // the driver's own
	case !bytes.Equal(read, key):
		return errUnread
	}
	return nil
}
