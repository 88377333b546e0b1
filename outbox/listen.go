package outbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql/driver"
	"errors"
	"reflect"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// listen hears the notices of other processes. It needs pgx, and a connection on which a notice
// to itself arrives: through a pooler in transaction mode none does. Without it the relay finds
// messages by its regular looks, and by wake-ups in its own process.
func (r *Relay) listen(ctx context.Context) {
	if !r.sql.Notifies || r.tooFewConnections() {
		return
	}
	heard, silent := false, 0
	for failures := 1; ctx.Err() == nil; failures++ {
		began := time.Now()
		err := r.await("the connection that listens", func() error { return r.listenOnce(ctx, &heard) })
		if ctx.Err() != nil {
			return
		}
		mute := !heard && errors.Is(err, errSilent)
		if mute {
			silent++
		}
		if errors.Is(err, errDeaf) || silent == deafAfter {
			r.log.Info("outbox: notices from other processes do not reach this relay; it polls instead",
				watermill.LogFields{"reason": errDeaf.Error()})
			return
		}
		if time.Since(began) > time.Minute {
			failures = 1
		}
		if !mute {
			r.log.Info("outbox: the relay lost the connection on which it hears notices; reconnecting", nil)
		}
		select {
		case <-ctx.Done():
		case <-time.After(growing(failures, time.Second, time.Minute)):
		}
	}
}

// tooFewConnections reports whether the pool cannot spare a connection.
func (r *Relay) tooFewConnections() bool {
	most := r.db.Stats().MaxOpenConnections
	return most > 0 && most < 4
}

// deafAfter is after how many notices that did not arrive a relay that has never heard one listens no
// more: a slow database may lose one or two.
const deafAfter = 3

var (
	errDeaf   = errors.New("the driver or a pooler does not pass notices on")
	errSilent = errors.New("a notice did not arrive")
)

// listenOnce listens on one connection until it breaks, and notes in heard that a notice arrived.
func (r *Relay) listenOnce(ctx context.Context, heard *bool) error {
	conn, err := r.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the pool discards it
	var found error
	err = conn.Raw(func(driverConn any) error {
		wait := waiter(driverConn)
		exec, executes := driverConn.(driver.ExecerContext)
		if wait == nil || !executes {
			found = errDeaf
			return nil
		}
		if _, err := exec.ExecContext(ctx, r.sql.Listen, nil); err != nil {
			return driver.ErrBadConn
		}
		if found = r.hear(ctx, wait); found == nil {
			*heard = true
		}
		for found == nil {
			if _, found = wait(ctx); found == nil {
				r.Wake()
			}
		}
		return driver.ErrBadConn // it listens: the pool must not lend it to others
	})
	return cmp.Or(found, err)
}

// hear sends a notice through the pool and returns errSilent if it does not arrive. Others do not count:
// a pooler may have left them on the connection before.
func (r *Relay) hear(ctx context.Context, wait func(context.Context) (payload string, err error)) error {
	const patience = 5 * time.Second
	own := rand.Text()
	sending, sent := context.WithTimeout(ctx, lookTimeout)
	_, err := r.db.ExecContext(sending, r.sql.Notify+`, '`+own+`'`)
	if sent(); err != nil {
		return err // the database is down or the pool exhausted, which says nothing about notices
	}
	ctx, cancel := context.WithTimeout(ctx, patience) // only now: a busy database takes long to send it
	defer cancel()
	for {
		payload, err := wait(ctx)
		switch {
		case ctx.Err() != nil:
			return errSilent
		case err != nil:
			return err
		case payload == own:
			return nil
		}
		r.Wake()
	}
}

// waiter finds pgx's method that waits for a notice, behind a driver's connection. It uses
// reflection, as only the user imports the driver. It returns nil where there is no such method.
func waiter(driverConn any) func(context.Context) (payload string, err error) {
	conn := reflect.ValueOf(driverConn).MethodByName("Conn")
	if !conn.IsValid() || conn.Type().NumIn() != 0 || conn.Type().NumOut() != 1 {
		return nil
	}
	inner := conn.Call(nil)[0]
	if kind := inner.Kind(); (kind == reflect.Interface || kind == reflect.Pointer) && inner.IsNil() {
		return nil
	}
	wait := inner.MethodByName("WaitForNotification")
	if !wait.IsValid() || wait.Type().NumOut() != 2 ||
		wait.Type().NumIn() != 1 || wait.Type().In(0) != reflect.TypeFor[context.Context]() || !hasPayload(wait.Type().Out(0)) {
		return nil
	}
	return func(ctx context.Context) (payload string, err error) {
		results := wait.Call([]reflect.Value{reflect.ValueOf(ctx)})
		if err, _ = results[1].Interface().(error); err != nil {
			return "", err
		}
		return results[0].Elem().FieldByName("Payload").String(), nil
	}
}

func hasPayload(notice reflect.Type) bool {
	if notice.Kind() != reflect.Pointer || notice.Elem().Kind() != reflect.Struct {
		return false
	}
	payload, found := notice.Elem().FieldByName("Payload")
	return found && payload.Type.Kind() == reflect.String
}
