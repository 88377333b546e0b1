package stacks_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	entsql "entgo.io/ent/dialect/sql"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// placed publishes that the order was placed, in the transaction of ctx.
func placed(ctx context.Context, out *outbox.Publisher, id string) error {
	return out.Publish("orders", message.NewMessageWithContext(ctx, watermill.NewUUID(), []byte(id)))
}

func placeWithGORM(ctx context.Context, db *gorm.DB, out *outbox.Publisher, o order) error {
	return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := tx.Create(&o).Error; err != nil {
			return err
		}
		return placed(outbox.WithTx(ctx, tx.Statement.ConnPool.(*sql.Tx)), out, o.ID)
	})
}

func placeWithBun(ctx context.Context, db *bun.DB, out *outbox.Publisher, o order) error {
	return db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		if _, err := tx.NewInsert().Model(&o).Exec(ctx); err != nil {
			return err
		}
		return placed(outbox.WithTx(ctx, tx.Tx), out, o.ID)
	})
}

// placeWithEnt begins the transaction itself, since a transaction that ent began does not show it.
func placeWithEnt(ctx context.Context, db *sql.DB, out *outbox.Publisher, o order) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit it does nothing
	driver := entDriver(tx)
	query, args := entsql.Dialect("postgres").Insert("orders").Columns("id", "amount").Values(o.ID, o.Amount).Query()
	if err := driver.Exec(ctx, query, args, nil); err != nil {
		return err
	}
	if err := placed(outbox.WithTx(ctx, tx), out, o.ID); err != nil {
		return err
	}
	return tx.Commit()
}

// TestOutbox stores a message with the order, or neither.
func TestOutbox(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short has no PostgreSQL")
	}
	db := testdb.On(t, "postgres")
	db.Do(t, `CREATE TABLE orders (id TEXT PRIMARY KEY, amount BIGINT NOT NULL)`)
	out := rig.NewOutbox(t, db.DB, outbox.Config{})
	asGORM, err := gorm.Open(postgres.New(postgres.Config{Conn: db.DB.DB}), &gorm.Config{Logger: logger.Discard})
	require.NoError(t, err)
	asBun := bun.NewDB(db.DB.DB, pgdialect.New())
	for name, place := range map[string]func(o order) error{
		"GORM": func(o order) error { return placeWithGORM(t.Context(), asGORM, out, o) },
		"bun":  func(o order) error { return placeWithBun(t.Context(), asBun, out, o) },
		"ent":  func(o order) error { return placeWithEnt(t.Context(), db.DB.DB, out, o) },
		"sqlx": func(o order) error {
			return outbox.InTx(t.Context(), db.DB, func(ctx context.Context, tx *sqlx.Tx) error {
				_, err := tx.NamedExecContext(ctx, `INSERT INTO orders (id, amount) VALUES (:id, :amount)`, o)
				return errors.Join(err, placed(ctx, out, o.ID))
			})
		},
	} {
		require.NoError(t, place(order{name, 1}), name)
		require.Error(t, place(order{name, 1}), name) // a second order of that id
	}
	var stored []string
	require.NoError(t, db.SelectContext(t.Context(), &stored, `SELECT encode(payload, 'escape') FROM millrace_outbox ORDER BY 1`))
	assert.ElementsMatch(t, []string{"GORM", "bun", "ent", "sqlx"}, stored)
}
