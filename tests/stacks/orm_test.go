package stacks_test

import (
	"context"
	"database/sql"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"entgo.io/ent/dialect/sql/sqlgraph"
	"entgo.io/ent/schema/field"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/millrace-go/millrace/inbox"
)

type account struct {
	ID      string `bun:",pk"`
	Balance int64
}

func withBun(pool *sqlx.DB) message.NoPublishHandlerFunc {
	db := bun.NewDB(pool.DB, pgdialect.New())
	return func(msg *message.Message) error {
		o, err := read(msg)
		if err != nil {
			return err
		}
		tx, err := inbox.Tx(msg.Context())
		if err != nil {
			return err
		}
		if _, err := db.NewInsert().Model(&o).Conn(tx.Tx).Exec(msg.Context()); err != nil { // Conn: else it uses the pool
			return err
		}
		_, err = db.NewUpdate().Model(&account{ID: "shop"}).Set("balance = balance + ?", o.Amount).WherePK().Conn(tx.Tx).Exec(msg.Context())
		return err
	}
}

func withGORM(pool *sqlx.DB) (message.NoPublishHandlerFunc, error) {
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool.DB}), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return nil, err
	}
	return func(msg *message.Message) error {
		o, err := read(msg)
		if err != nil {
			return err
		}
		tx, err := inbox.Tx(msg.Context())
		if err != nil {
			return err
		}
		session := inTx(msg.Context(), db, tx.Tx)
		if err := session.Create(&o).Error; err != nil {
			return err
		}
		return session.Transaction(func(nested *gorm.DB) error { // a savepoint
			return nested.Model(&account{ID: "shop"}).Update("balance", gorm.Expr("balance + ?", o.Amount)).Error
		})
	}, nil
}

// inTx returns a session of db that writes in tx. Without it, db begins a transaction of its own.
func inTx(ctx context.Context, db *gorm.DB, tx *sql.Tx) *gorm.DB {
	session := db.Session(&gorm.Session{Context: ctx, NewDB: true, SkipDefaultTransaction: true})
	session.Statement.ConnPool = tx
	return session
}

// withEnt does what the code does that ent has generated: it gives the driver to sqlgraph, which begins a transaction for an update.
func withEnt(msg *message.Message) error {
	o, err := read(msg)
	if err != nil {
		return err
	}
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	driver := entDriver(tx.Tx) // of a client: ent.NewClient(ent.Driver(driver))
	err = sqlgraph.CreateNode(msg.Context(), driver, &sqlgraph.CreateSpec{
		Table: "orders", ID: &sqlgraph.FieldSpec{Column: "id", Type: field.TypeString, Value: o.ID},
		Fields: []*sqlgraph.FieldSpec{{Column: "amount", Type: field.TypeInt64, Value: o.Amount}},
	})
	if err != nil {
		return err
	}
	id := &sqlgraph.FieldSpec{Column: "id", Type: field.TypeString, Value: "shop"}
	return sqlgraph.UpdateNode(msg.Context(), driver, &sqlgraph.UpdateSpec{
		Node:       &sqlgraph.NodeSpec{Table: "accounts", ID: id, Columns: []string{"id"}},
		Fields:     sqlgraph.FieldMut{Add: []*sqlgraph.FieldSpec{{Column: "balance", Type: field.TypeInt64, Value: o.Amount}}},
		ScanValues: func([]string) ([]any, error) { return []any{new(sql.NullString)}, nil },
		Assign:     func([]string, []any) error { return nil },
	})
}

// entTx is a driver of ent that stays in a transaction.
type entTx struct{ *entsql.Driver }

func entDriver(tx *sql.Tx) entTx {
	return entTx{entsql.NewDriver(dialect.Postgres, entsql.Conn{ExecQuerier: tx})}
}

// Tx is what ent calls for an update, and for edges. That of the embedded driver panics, since it has no *sql.DB.
func (d entTx) Tx(context.Context) (dialect.Tx, error) { return dialect.NopTx(d), nil }

// BeginTx is Tx.
func (d entTx) BeginTx(ctx context.Context, _ *entsql.TxOptions) (dialect.Tx, error) {
	return d.Tx(ctx)
}
