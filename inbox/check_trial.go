package inbox

import (
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
		return errTrialOver
	})
	claims := s.config.TablePrefix + "claims"
	switch kind := dialect.Classify(err); {
	case errors.Is(err, errTrialOver) && won[0] && !won[1]:
		return nil
	case errors.Is(err, errTrialOver):
		c.fail(claims, fmt.Sprintf("two claims of one key succeeded as %v, not [true false]", won),
			"its primary key must be (consumer, message_id): compare the table with Store.Schema()")
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
