// Package redisleases keeps the keys of middleware.Deduplicate in Redis, for services whose
// processes share a Redis server but no database. It is a module of its own, so that other
// services need no Redis client.
//
//	claims, err := redisleases.New(client, redisleases.Config{})
//	router.AddMiddleware(millrace.Deduplicate{Claims: claims}.Middleware)
//
// When Router.Run has returned, call claims.Close, which waits until the last keys are confirmed, and then
// close the client.
//
// The guarantee is as good as the server's memory: set maxmemory-policy to noeviction and turn on
// append-only persistence. A failover to a replica that lagged behind forgets the latest keys: if
// a copy of one of their messages comes, it is handled again.
package redisleases

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/redis/go-redis/v9"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/lease"
)

// Config configures [New]. The zero value is right for most services.
type Config struct {
	// Prefix starts every key in Redis. Services that share a server and have consumers of the same
	// name need different prefixes. Defaults to "millrace:lease:".
	Prefix string

	// Logger gets what a person must know. Defaults to slog.Default.
	Logger watermill.LoggerAdapter

	// Observers are told of decisions: see [inbox.LeasesConfig].
	Observers []inbox.Observer
}

// New returns leases in the Redis server of client, a *redis.Client or one of a cluster. It sends
// nothing yet. Each call of the leases is one script on one key, and uses the server's clock.
func New(client redis.Scripter, config Config) (*inbox.Leases, error) {
	if client == nil {
		return nil, errors.New("redisleases: New needs a Redis client")
	}
	if config.Prefix == "" {
		config.Prefix = "millrace:lease:"
	}
	return inbox.NewLeases(&store{client, config.Prefix},
		inbox.LeasesConfig{Logger: config.Logger, Observers: config.Observers}), nil
}

// store is an [lease.Store]. A key's value is its holder's token, or says that this token
// confirmed it: a client that lost an answer repeats the call, and must get the same answer.
type store struct {
	client redis.Scripter
	prefix string
}

const confirmed = "confirmed by " // a token

var (
	acquire = redis.NewScript(`
		local holder = redis.call('GET', KEYS[1])
		if not holder or holder == ARGV[1] then
			redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
			return {ARGV[1], ARGV[2]}
		end
		return {holder, tostring(redis.call('PTTL', KEYS[1]))}`)

	// become gives the key another value and another expiry, if the token holds it or if an earlier
	// call did the same.
	become = redis.NewScript(`
		local holder = redis.call('GET', KEYS[1])
		if holder ~= ARGV[1] and holder ~= ARGV[2] then
			return 0
		end
		redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
		return 1`)

	release = redis.NewScript(`
		if redis.call('GET', KEYS[1]) == ARGV[1] then
			redis.call('DEL', KEYS[1])
		end
		return 0`)
)

func (s *store) Acquire(ctx context.Context, key lease.Key, token int64, d time.Duration) (lease.State, error) {
	answer, err := acquire.Run(ctx, s.client, []string{s.name(key)}, token, d.Milliseconds()).StringSlice()
	if err != nil {
		return lease.State{}, explain(ctx, "acquire", err)
	}
	if len(answer) != 2 {
		return lease.State{}, fmt.Errorf("redisleases: acquire: unexpected answer %q", answer)
	}
	remaining, err := strconv.ParseInt(answer[1], 10, 64)
	if err != nil {
		return lease.State{}, fmt.Errorf("redisleases: acquire: unexpected answer %q: %w", answer, err)
	}
	state := lease.State{Status: lease.Held, Remaining: time.Duration(remaining) * time.Millisecond}
	switch {
	case answer[0] == strconv.FormatInt(token, 10):
		state.Status = lease.Taken
	case strings.HasPrefix(answer[0], confirmed):
		state.Status = lease.Confirmed
	}
	return state, nil
}

func (s *store) Confirm(ctx context.Context, key lease.Key, token int64, retention time.Duration) error {
	return s.hold(ctx, "confirm", key, token, confirmed+strconv.FormatInt(token, 10), retention)
}

func (s *store) Extend(ctx context.Context, key lease.Key, token int64, d time.Duration) error {
	return s.hold(ctx, "extend", key, token, strconv.FormatInt(token, 10), d)
}

func (s *store) Release(ctx context.Context, key lease.Key, token int64) error {
	if err := release.Run(ctx, s.client, []string{s.name(key)}, token).Err(); err != nil {
		return explain(ctx, "release", err)
	}
	return nil
}

func (s *store) hold(ctx context.Context, what string, key lease.Key, token int64, value string,
	d time.Duration) error {
	held, err := become.Run(ctx, s.client, []string{s.name(key)}, token, value, d.Milliseconds()).Int()
	if err != nil {
		return explain(ctx, what, err)
	}
	if held == 0 {
		return inbox.ErrLeaseLost
	}
	return nil
}

// name puts the length before the consumer's name, so that no two keys have the same name.
func (s *store) name(key lease.Key) string {
	b := []byte(s.prefix)
	b = binary.AppendUvarint(b, uint64(len(key.Consumer)))
	b = append(b, key.Consumer...)
	b = binary.AppendUvarint(b, uint64(key.Epoch)) //nolint:gosec // never negative
	b = append(b, key.ID...)
	return string(b)
}

// unserved begin the answers of a server that cannot serve yet or does not let us in.
var unserved = []string{
	"LOADING", "READONLY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "OOM", "MISCONF", "NOREPLICAS",
	"BUSY ", // not BUSYKEY
	"NOAUTH", "WRONGPASS", "NOPERM", "ERR max number of clients",
}

// explain marks an error as inbox.ErrUnavailable if the server does not answer, cannot serve yet or
// does not let us in, and not if it refuses the script.
func explain(ctx context.Context, what string, err error) error {
	var said redis.Error
	if errors.As(err, &said) {
		for _, start := range unserved {
			if strings.HasPrefix(said.Error(), start) {
				return fmt.Errorf("redisleases: %s: %w: %w", what, inbox.ErrUnavailable, err)
			}
		}
		return fmt.Errorf("redisleases: %s: %w", what, err)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("redisleases: %s: %w", what, err)
	}
	return fmt.Errorf("redisleases: %s: %w: %w", what, inbox.ErrUnavailable, err)
}
