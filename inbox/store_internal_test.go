package inbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// nowhere is a driver that never connects.
type nowhere struct{}

func (nowhere) Connect(context.Context) (driver.Conn, error) { return nil, errors.New("nowhere") }
func (nowhere) Driver() driver.Driver                        { return nil }

// On SQLite, with one writer, whatever else writes waits for the delivery that is running and for no other.
func TestAWriterWaitsForOneDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := sql.OpenDB(nowhere{})
		defer func() { require.NoError(t, db.Close()) }()
		s, err := NewStore(sqlx.NewDb(db, "sqlite"), Config{})
		require.NoError(t, err)
		leave, err := s.slot(t.Context())
		require.NoError(t, err)

		var order []string // the turn excludes the others
		enter := func(who string, enter func(context.Context) (func(), error)) {
			go func() {
				leave, err := enter(t.Context())
				assert.NoError(t, err)
				order = append(order, who)
				leave()
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error)
		go func() { _, err := s.slot(ctx); gone <- err }()
		synctest.Wait()
		for range 3 {
			enter("delivery", s.slot)
		}
		enter("relay", s.db.Enter)
		cancel()
		require.ErrorIs(t, <-gone, context.Canceled)
		synctest.Wait()
		require.Empty(t, order)
		leave()
		synctest.Wait()
		assert.Equal(t, []string{"relay", "delivery", "delivery", "delivery"}, order)
	})
}
