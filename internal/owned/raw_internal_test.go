package owned

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
)

// At the end of a context database/sql closes the connection, maybe just when it is to be given up.
func TestAConnectionThatIsClosedMeanwhile(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	closing := &Tx{ctx: ctx, conn: &sqlx.Conn{Conn: new(sql.Conn)}} // as Raw finds it then
	assert.Panics(t, closing.discard, "nobody else has closed it")
	cancel()
	assert.NotPanics(t, closing.discard)
}
