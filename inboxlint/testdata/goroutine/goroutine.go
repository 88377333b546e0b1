// Package goroutine has handlers that give their transaction to goroutines.
package goroutine

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/inbox"
)

func handle(msg *message.Message) error {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	go func() { // want `a goroutine with the transaction.*#the-transaction-in-a-goroutine`
		store(msg.Context(), tx)
	}()
	go store(msg.Context(), tx)          // want `a goroutine`
	time.AfterFunc(time.Second, func() { // want `a goroutine`
		store(msg.Context(), tx)
	})
	go func() { // want `a goroutine`
		mine, err := inbox.Tx(msg.Context())
		if err == nil {
			store(msg.Context(), mine)
		}
	}()
	go println(msg.UUID)
	return nil
}

func store(context.Context, *sqlx.Tx) {}

func waits(msg *message.Message) error {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.Go(func() error {
		_, err := tx.ExecContext(msg.Context(), `SELECT 1`)
		return err
	})
	return group.Wait()
}

func forgets(msg *message.Message) error {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	var wait sync.WaitGroup
	wait.Go(func() { store(msg.Context(), tx) }) // want `a goroutine`
	return nil
}

func receives(msg *message.Message) error {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- tx.GetContext(msg.Context(), new(int), `SELECT 1`) }()
	select {
	case err := <-done:
		return err
	case <-msg.Context().Done():
		return msg.Context().Err()
	}
}

func helped(msg *message.Message) error {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- tx.GetContext(msg.Context(), new(int), `SELECT 1`) }()
	return first(done)
}

func first(all <-chan error) error { return <-all }

func closes(msg *message.Message) error {
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- tx.GetContext(msg.Context(), new(int), `SELECT 1`) }() // want `a goroutine`
	close(done)
	return nil
}

// run starts a router, whose handlers have transactions of their own.
func run(router *message.Router, sub message.Subscriber) {
	go func() {
		router.AddConsumerHandler("a", "b", sub, func(msg *message.Message) error {
			tx, err := inbox.Tx(msg.Context())
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(msg.Context(), `SELECT 1`)
			return err
		})
	}()
}
