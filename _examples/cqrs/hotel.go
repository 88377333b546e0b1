package main

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/jmoiron/sqlx"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/outbox"
)

// The commands and events of a hotel.
type (
	BookRoom struct {
		Room, Nights, Price int
	}
	RoomBooked struct {
		Room, Nights, Price int
	}
	OrderBeer struct {
		Room, Count int
	}
	BeerOrdered struct {
		Room, Count int
	}
)

const tables = `
	CREATE TABLE request (room INTEGER, nights INTEGER, price INTEGER);
	CREATE TABLE booking (room INTEGER, nights INTEGER, price INTEGER);
	CREATE TABLE beer    (room INTEGER, count INTEGER);
	CREATE TABLE report  (bookings INTEGER, revenue INTEGER, beers INTEGER);
	INSERT INTO report VALUES (0, 0, 0)`

// hotel sends commands and events through the outbox. Its methods are given a context that
// carries a transaction: what they write and what they send is committed together.
type hotel struct {
	db       *sqlx.DB
	commands *cqrs.CommandBus
	events   *cqrs.EventBus
}

// request is what an HTTP handler would call: there is no message yet, so it begins the
// transaction itself.
func (h *hotel) request(ctx context.Context, cmd BookRoom) error {
	return outbox.InTx(ctx, h.db, func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.NamedExecContext(ctx, `INSERT INTO request VALUES (:room, :nights, :price)`, cmd)
		if err != nil {
			return err
		}
		return h.commands.Send(ctx, cmd)
	})
}

func (h *hotel) bookRoom(ctx context.Context, cmd *BookRoom) error {
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	_, err = tx.NamedExecContext(ctx, `INSERT INTO booking VALUES (:room, :nights, :price)`, cmd)
	if err != nil {
		return err
	}
	return h.events.Publish(ctx, RoomBooked(*cmd))
}

// welcome answers an event with a command: a beer for each night.
func (h *hotel) welcome(ctx context.Context, event *RoomBooked) error {
	return h.commands.Send(ctx, OrderBeer{Room: event.Room, Count: event.Nights})
}

func (h *hotel) orderBeer(ctx context.Context, cmd *OrderBeer) error {
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	if _, err := tx.NamedExecContext(ctx, `INSERT INTO beer VALUES (:room, :count)`, cmd); err != nil {
		return err
	}
	return h.events.Publish(ctx, BeerOrdered(*cmd))
}

// reportBooking and reportBeer are a projection that adds up: each event must count once.
func (h *hotel) reportBooking(ctx context.Context, event *RoomBooked) error {
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	_, err = tx.NamedExecContext(ctx,
		`UPDATE report SET bookings = bookings + 1, revenue = revenue + :nights * :price`, event)
	return err
}

func (h *hotel) reportBeer(ctx context.Context, event *BeerOrdered) error {
	tx, err := inbox.Tx(ctx)
	if err != nil {
		return err
	}
	_, err = tx.NamedExecContext(ctx, `UPDATE report SET beers = beers + :count`, event)
	return err
}
