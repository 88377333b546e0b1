package testdb

import (
	"context"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
)

// Role makes a role of PostgreSQL that may do nothing yet, for the time of the test.
func (db *DB) Role(t testing.TB) string {
	t.Helper()
	role := "role_" + strings.ToLower(watermill.NewShortUUID())
	db.Do(t, `CREATE ROLE "`+role+`"`)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, _ = db.ExecContext(ctx, `DROP OWNED BY "`+role+`"`) // the next statement tells
		_, err := db.ExecContext(ctx, `DROP ROLE "`+role+`"`)
		assert.NoError(t, err)
	})
	return role
}
