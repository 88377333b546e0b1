package outbox_test

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/internal/steady"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
)

// opened is a pool on nothing: no test here asks for a connection.
func opened(t *testing.T, driver string) *sqlx.DB {
	t.Helper()
	db, err := sqlx.Open("sqlite", ":memory:")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return sqlx.NewDb(db.DB, driver)
}

// nowhere is a broker.
type nowhere struct{ message.Publisher }

func TestConfigReportsAllProblemsAtOnce(t *testing.T) {
	bad := outbox.Config{Dialect: "oracle", Schema: "Bad-Name", TablePrefix: "drop table "}
	_, constructed := outbox.NewPublisher(opened(t, "sqlite"), bad)
	for _, err := range []error{bad.Validate(), constructed} {
		for _, want := range []string{
			"outbox: invalid Config", `"oracle" is not one of`, `Schema "Bad-Name"`, `TablePrefix "drop table "`,
		} {
			assert.ErrorContains(t, err, want)
		}
	}
	require.NoError(t, outbox.Config{}.Validate())
}

// TestNoFieldIsNoKey, which would put nothing in order, and say nothing.
func TestNoFieldIsNoKey(t *testing.T) {
	out, err := outbox.NewPublisher(opened(t, "sqlite"), outbox.Config{OrderKey: outbox.ByMetadata(""), Standalone: true})
	require.NoError(t, err)
	require.ErrorContains(t, out.Publish("orders", message.NewMessage("a", nil)), "outbox.ByMetadata was given no field")
}

func TestRelayConfigReportsAllProblemsAtOnce(t *testing.T) {
	bad := outbox.RelayConfig{
		Dialect: "oracle", Schema: "Bad-Name", TablePrefix: "drop table ", Name: "\xff", Batch: -1, Lanes: 1000,
		KeyBurst: -2, Lease: 1, Poll: 2, MaxAttempts: -3, MinBackoff: 4, MaxBackoff: 3,
		OnParked: 77, Retention: -5, Drain: -6,
	}
	_, constructed := outbox.NewRelay(opened(t, "sqlite"), nowhere{}, bad)
	for _, err := range []error{bad.Validate(), constructed} {
		for _, want := range []string{
			"outbox: invalid RelayConfig", `"oracle" is not one of`, `Schema "Bad-Name"`, `TablePrefix "drop table "`,
			"the Name", "Batch -1", "Lanes 1000", "KeyBurst -2", "Lease 1ns",
			"Poll 2ns", "MaxAttempts -3", "MinBackoff 4ns", "MaxBackoff 3ns", "OnParked 77", "Retention -5ns", "Drain -6ns",
		} {
			assert.ErrorContains(t, err, want)
		}
	}
	require.ErrorContains(t, outbox.RelayConfig{Lease: math.MaxInt64}.Validate(), "16.854775807s is more than 24h0m0s")
	for _, good := range []outbox.RelayConfig{
		{}, {Retention: outbox.Forever, MaxAttempts: outbox.Unlimited, OnParked: outbox.Continue},
	} {
		require.NoError(t, good.Validate())
	}
}

func TestWhatIsRequired(t *testing.T) {
	_, err := outbox.NewPublisher(nil, outbox.Config{})
	require.ErrorContains(t, err, "*sqlx.DB")
	_, err = outbox.NewRelay(nil, nowhere{}, outbox.RelayConfig{})
	require.ErrorContains(t, err, "*sqlx.DB")
	db := opened(t, "sqlite")
	_, err = outbox.NewRelay(db, nil, outbox.RelayConfig{})
	require.ErrorContains(t, err, "needs a publisher")
	out, err := outbox.NewPublisher(db, outbox.Config{})
	require.NoError(t, err)
	_, err = outbox.NewRelay(db, out, outbox.RelayConfig{})
	require.ErrorContains(t, err, "the outbox itself")
	_, err = outbox.NewPublisher(db, outbox.Config{Schema: "messaging"})
	require.ErrorContains(t, err, "is for PostgreSQL")
}

func TestTheDatabaseCanBeNamed(t *testing.T) {
	closed := opened(t, "traced")
	hidden := sqlx.NewDb(closed.DB, "traced")
	for _, name := range []string{"postgres", "mysql", "sqlite"} {
		out, err := outbox.NewPublisher(hidden, outbox.Config{Dialect: name, TablePrefix: "shop_"})
		require.NoError(t, err)
		assert.Contains(t, out.Schema(), "shop_outbox")
		assert.NotContains(t, out.Schema(), "millrace_")
	}
}

// words writes a duration as the comments do.
func words(d time.Duration) string {
	if d%time.Minute == 0 {
		return fmt.Sprintf("%d minutes", d/time.Minute)
	}
	if d == time.Second {
		return "1 second"
	}
	return fmt.Sprintf("%d seconds", d/time.Second)
}

// documented are the defaults as the code has them, in the words of the comments.
func documented(t *testing.T) map[string]string {
	t.Helper()
	config, relay := outbox.Config{}.WithDefaults(), outbox.RelayConfig{}.WithDefaults()
	require.Equal(t, steady.Default(nil), config.Logger)
	require.Equal(t, steady.Default(nil), relay.Logger)
	require.Empty(t, config.Dialect+config.Schema+relay.Dialect+relay.Schema)
	require.Equal(t, config.TablePrefix, relay.TablePrefix)
	require.Nil(t, config.OrderKey)
	require.Nil(t, config.Stamp)
	require.False(t, config.Standalone)
	require.Equal(t, outbox.HoldKey, relay.OnParked)
	typed := func(md message.Metadata) string { return config.Describe(&message.Message{Metadata: md}) }
	require.Equal(t, "n", typed(message.Metadata{"name": "n", "ce_type": "t"}))
	require.Equal(t, "t", typed(message.Metadata{"ce_type": "t"}))

	const (
		none       = "Defaults to none"
		logger     = "Defaults to slog.Default."
		dialect    = "Defaults to what the driver, or else the server, says"
		searchPath = "Defaults to the connection's search path"
	)
	prefix := fmt.Sprintf("Defaults to %q", config.TablePrefix)
	number := func(n int) string { return fmt.Sprintf("Defaults to %d", n) }
	backoff := fmt.Sprintf("They default to %s and %s", words(relay.MinBackoff), words(relay.MaxBackoff))
	return map[string]string{
		"Config.Logger": logger, "Config.Dialect": dialect, "Config.Schema": searchPath, "Config.TablePrefix": prefix,
		"Config.OrderKey":   "Defaults to no order",
		"Config.Stamp":      none,
		"Config.Describe":   "Defaults to the metadata field \"name\", which Watermill's CQRS sets, or else \"ce_type\"",
		"Config.Standalone": "By default Publish refuses such a message with [ErrNoTx]",

		"RelayConfig.Logger": logger, "RelayConfig.Dialect": dialect, "RelayConfig.Schema": searchPath,
		"RelayConfig.TablePrefix": prefix,
		"RelayConfig.Name":        "Defaults to the token of its lease",
		"RelayConfig.Batch":       number(relay.Batch) + ":",
		"RelayConfig.Lanes":       number(relay.Lanes) + ":",
		"RelayConfig.KeyBurst":    number(relay.KeyBurst) + ".",
		"RelayConfig.Lease":       "Defaults to " + words(relay.Lease) + ":",
		"RelayConfig.Poll":        "Defaults to " + words(relay.Poll) + ".",
		"RelayConfig.MaxAttempts": number(relay.MaxAttempts) + ", which with the default backoff takes " + attempts(t, relay),
		"RelayConfig.MinBackoff":  backoff,
		"RelayConfig.MaxBackoff":  backoff,
		"RelayConfig.OnParked":    "Defaults to HoldKey:",
		"RelayConfig.Retention":   "Defaults to " + fmt.Sprint(int(relay.Retention)) + ":",
		"RelayConfig.Drain":       "Defaults to " + words(relay.Drain) + ",",
	}
}

// attempts says how long the attempts of a message take, from what the pauses can be.
func attempts(t *testing.T, relay outbox.RelayConfig) string {
	t.Helper()
	var most time.Duration
	for n := 1; n < relay.MaxAttempts; n++ {
		bound := min(relay.MinBackoff<<(n-1), relay.MaxBackoff)
		require.InDelta(t, bound.Seconds(), relay.LongestBackoff(n).Seconds(), bound.Seconds()/20)
		most += bound
	}
	require.InDelta(t, 4.25, most.Minutes()/2, 0.25)
	require.InDelta(t, 8.5, most.Minutes(), 0.5)
	return "four minutes on average and nine at most"
}

func TestDefaultsAreAsTheCommentsSay(t *testing.T) {
	rig.DefaultsAsCommented(t, documented(t), [2]string{"config.go", "Config"}, [2]string{"relayconfig.go", "RelayConfig"})
}

// onPublish is a broker that looks around while a relay is at work.
type onPublish func()

func (f onPublish) Publish(string, ...*message.Message) error { f(); return nil }
func (onPublish) Close() error                                { return nil }

// Without a logger the relay says all the same what a person must know.
func TestARelayLogsByDefault(t *testing.T) {
	lines := rig.DefaultLog(t, slog.LevelInfo)
	db := exampleDB(t.TempDir())
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	out, err := outbox.NewPublisher(db, outbox.Config{Standalone: true})
	require.NoError(t, err)
	require.NoError(t, out.Migrate(t.Context()))
	require.NoError(t, out.Publish("orders", message.NewMessage("a", nil)))
	relay, err := outbox.NewRelay(db, unroutable{}, outbox.RelayConfig{MaxAttempts: 1})
	require.NoError(t, err)
	_, _ = relay.RelayBatch(t.Context())
	require.Contains(t, lines.String(), `level=ERROR msg="outbox: message parked for an operator"`)
}

func TestARelayIsKnownByItsName(t *testing.T) {
	db := exampleDB(t.TempDir())
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	out, err := outbox.NewPublisher(db, outbox.Config{Standalone: true})
	require.NoError(t, err)
	require.NoError(t, out.Migrate(t.Context()))
	for _, given := range []string{"", "host-7"} {
		var name, token string
		relay, err := outbox.NewRelay(db, onPublish(func() {
			row := db.QueryRow(`SELECT name, CAST(token AS TEXT) FROM millrace_outbox_relays`)
			err = errors.Join(err, row.Scan(&name, &token))
		}), outbox.RelayConfig{Name: given})
		require.NoError(t, err)
		require.NoError(t, out.Publish("orders", message.NewMessage("a", nil)))
		_, relayed := relay.RelayBatch(t.Context())
		require.NoError(t, errors.Join(err, relayed))
		if given == "" {
			given = token
		}
		assert.Equal(t, given, name)
	}
}
