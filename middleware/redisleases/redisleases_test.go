package redisleases_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/lease"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/middleware/redisleases"
	"github.com/millrace-go/millrace/tests/leasetest"
)

// server returns the address of a Redis server, named by a URL or as host:port, and ends the
// test where there is none.
func server(t *testing.T) string {
	t.Helper()
	addr := os.Getenv("MILLRACE_TEST_REDIS")
	if addr == "" {
		const remedy = "redis is missing: set MILLRACE_TEST_REDIS to redis://host:port"
		if os.Getenv("MILLRACE_TEST_ALL") == "1" {
			t.Fatal(remedy + " (MILLRACE_TEST_ALL=1 forbids a skip)")
		}
		t.Skip(remedy)
	}
	if strings.Contains(addr, "://") {
		options, err := redis.ParseURL(addr)
		require.NoError(t, err)
		return options.Addr
	}
	return addr
}

func connect(t *testing.T, options *redis.Options) *redis.Client {
	t.Helper()
	client := redis.NewClient(options)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

// fresh returns a prefix that no other test uses, and removes its keys at the end.
func fresh(t *testing.T, addr string) (prefix string) {
	t.Helper()
	prefix = "millrace-test:" + rand.Text() + ":"
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		keys, err := client.Keys(ctx, prefix+"*").Result()
		require.NoError(t, err)
		if len(keys) > 0 {
			require.NoError(t, client.Del(ctx, keys...).Err())
		}
		require.NoError(t, client.Close())
	})
	return prefix
}

func TestDeduplicateInRedis(t *testing.T) {
	addr := server(t)
	leasetest.Run(t, func(t *testing.T) leasetest.Open {
		prefix := fresh(t, addr)
		return func(t *testing.T) lease.Store {
			leases, err := redisleases.New(connect(t, &redis.Options{Addr: addr}), redisleases.Config{Prefix: prefix})
			require.NoError(t, err)
			return leases.Store()
		}
	})
}

func TestRedisAnswersForEver(t *testing.T) {
	addr := server(t)
	leases, err := redisleases.New(connect(t, &redis.Options{Addr: addr}), redisleases.Config{Prefix: fresh(t, addr)})
	require.NoError(t, err)
	h := millrace.Deduplicate{Claims: leases, Consumer: "mailer", Retention: inbox.Forever}.Middleware(
		func(*message.Message) ([]*message.Message, error) { return nil, nil })
	for range 2 {
		_, err := h(message.NewMessage("a", nil))
		require.NoError(t, err)
	}
}

// The client repeats a call whose answer it lost.
func TestRedisCallsMayBeRepeated(t *testing.T) {
	addr := server(t)
	leases, err := redisleases.New(connect(t, &redis.Options{Addr: addr}), redisleases.Config{Prefix: fresh(t, addr)})
	require.NoError(t, err)
	store, key := leases.Store(), lease.Key{Consumer: "mailer", ID: "a"}
	for range 2 {
		state, err := store.Acquire(t.Context(), key, 7, time.Minute)
		require.NoError(t, err)
		require.Equal(t, lease.Taken, state.Status)
	}
	for range 2 {
		require.NoError(t, store.Confirm(t.Context(), key, 7, time.Minute))
	}
	require.ErrorIs(t, store.Confirm(t.Context(), key, 8, time.Minute), inbox.ErrLeaseLost)
	require.NoError(t, store.Release(t.Context(), key, 7))
	state, err := store.Acquire(t.Context(), key, 8, time.Minute)
	require.NoError(t, err)
	require.Equal(t, lease.Confirmed, state.Status)
}

func TestRedisDownIsSaidSo(t *testing.T) {
	client := connect(t, &redis.Options{
		MaxRetries: -1,
		Addr:       unreachable(t),
	})
	leases, err := redisleases.New(client, redisleases.Config{})
	require.NoError(t, err)
	_, err = leases.Store().Acquire(t.Context(), lease.Key{Consumer: "mailer", ID: "a"}, 1, time.Minute)
	require.ErrorIs(t, err, inbox.ErrUnavailable)
	var refused *net.OpError
	require.True(t, errors.As(err, &refused), err)

	_, err = redisleases.New(nil, redisleases.Config{})
	require.ErrorContains(t, err, "client")
}

// A server that cannot serve yet, or lets nobody in, is unavailable: one that refuses the script is not.
func TestRedisSaysWhatItCannotServe(t *testing.T) {
	for answer, unavailable := range map[string]bool{
		"LOADING Redis is loading the dataset in memory":                    true,
		"NOREPLICAS Not enough good replicas to write.":                     true,
		"BUSY Redis is busy running a script.":                              true,
		"NOAUTH Authentication required.":                                   true,
		"WRONGPASS invalid username-password pair or user is disabled.":     true,
		"NOPERM this user has no permissions to run the 'evalsha' command":  true,
		"ERR max number of clients reached":                                 true,
		"ERR unknown command 'EVALSHA'":                                     false,
		"WRONGTYPE Operation against a key holding the wrong kind of value": false,
	} {
		t.Run(strings.Fields(answer)[0], func(t *testing.T) {
			client := connect(t, &redis.Options{MaxRetries: -1, Addr: answering(t, answer)})
			leases, err := redisleases.New(client, redisleases.Config{})
			require.NoError(t, err)
			_, err = leases.Store().Acquire(t.Context(), lease.Key{Consumer: "mailer", ID: "a"}, 1, time.Minute)
			require.ErrorContains(t, err, answer)
			require.Equal(t, unavailable, errors.Is(err, inbox.ErrUnavailable), err)
		})
	}
}

// answering returns the address of a server that answers every command with an error.
func answering(t *testing.T, answer string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answerAll(conn, answer)
		}
	}()
	return listener.Addr().String()
}

// answerAll answers each command on conn, an array of strings whose length comes first.
func answerAll(conn net.Conn, answer string) {
	defer conn.Close() //nolint:errcheck // a test's
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		words, err := strconv.Atoi(strings.TrimPrefix(lines.Text(), "*"))
		if err != nil {
			return
		}
		for range 2 * words { // each has its length on a line before it
			lines.Scan()
		}
		if _, err := fmt.Fprintf(conn, "-%s\r\n", answer); err != nil {
			return
		}
	}
}

// unreachable returns an address where nobody listens.
func unreachable(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return listener.Addr().String()
}
