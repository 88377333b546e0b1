package outbox

import (
	"context"
	"database/sql/driver"
	"errors"
	"reflect"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// listen hears the notices of other processes, where the driver is pgx and a notice that
// the relay sends to itself arrives: through a pooler in transaction mode none does. Then
// the relay finds messages when it next looks, and by what is announced in its process.
func (r *Relay) listen(ctx context.Context) {
	if !r.sql.Notifies || r.tooFewConnections() {
		return
	}
	for failures := 1; ctx.Err() == nil; failures++ {
		began := time.Now()
		err := r.await("the connection that listens", func() error { return r.listenOnce(ctx) })
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errDeaf) {
			r.log.Info("outbox: notices of other processes do not reach this relay; it looks for messages by itself",
				watermill.LogFields{"reason": err.Error()})
			return
		}
		if time.Since(began) > time.Minute {
			failures = 1
		}
		r.log.Info("outbox: the connection that listens for notices was lost; opened again", nil)
		select {
		case <-ctx.Done():
		case <-time.After(growing(failures, time.Second, time.Minute)):
		}
	}
}

// tooFewConnections reports whether the pool cannot spare one.
func (r *Relay) tooFewConnections() bool {
	most := r.db.Stats().MaxOpenConnections
	return most > 0 && most < 4
}

// errDeaf is wrapped into the reasons why no notice can be heard.
var errDeaf = errors.New("the driver or a pooler keeps them away")

// listenOnce listens on one connection until it breaks.
func (r *Relay) listenOnce(ctx context.Context) error {
	conn, err := r.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // it is thrown away
	deaf := false
	err = conn.Raw(func(driverConn any) error {
		wait := waiter(driverConn)
		exec, executes := driverConn.(driver.ExecerContext)
		if deaf = wait == nil || !executes; deaf {
			return nil
		}
		if _, err := exec.ExecContext(ctx, r.sql.Listen, nil); err != nil {
			return driver.ErrBadConn
		}
		heard, err := r.hear(ctx, wait)
		deaf = err == nil && !heard
		for heard && wait(ctx) == nil {
			r.Wake()
		}
		return driver.ErrBadConn // it listens, so nobody else may have it
	})
	if deaf {
		return errDeaf
	}
	return err
}

// hear sends a notice through the pool and reports whether it arrives.
func (r *Relay) hear(ctx context.Context, wait func(context.Context) error) (heard bool, err error) {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := r.db.ExecContext(ctx, r.sql.Notify); err != nil {
		return false, err // the database is down or the pool is used up, and that is another matter
	}
	if err := wait(ctx); err != nil && ctx.Err() == nil {
		return false, err
	}
	return ctx.Err() == nil, nil
}

// waiter finds pgx's method to wait for a notice behind a driver's connection, without
// importing the driver: it is the user's. It returns nil where there is none.
func waiter(driverConn any) func(context.Context) error {
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
		wait.Type().NumIn() != 1 || wait.Type().In(0) != reflect.TypeFor[context.Context]() {
		return nil
	}
	return func(ctx context.Context) error {
		err, _ := wait.Call([]reflect.Value{reflect.ValueOf(ctx)})[1].Interface().(error)
		return err
	}
}
