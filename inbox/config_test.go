package inbox_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/payload"
	"github.com/millrace-go/millrace/tests/rig"
)

func TestConfigReportsAllProblemsAtOnce(t *testing.T) {
	bad := inbox.Config{
		Dialect: "oracle", Schema: "Bad-Name", TablePrefix: "drop table ", Namespace: strings.Repeat("n", 256),
		MaxInFlight: -1, SettledKeys: -2, PurgeInterval: -3, RedispatchAfter: -4,
		BlobsAbove: -5, BlobGrace: -6,
	}
	db, err := sqlx.Open("sqlite", ":memory:")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	_, constructed := inbox.NewStore(db, bad)
	for _, err := range []error{bad.Validate(), constructed} {
		for _, want := range []string{
			"inbox: invalid Config", `"oracle" is not one of`, `Schema "Bad-Name"`, `TablePrefix "drop table "`,
			"Namespace is longer than 255", "MaxInFlight -1", "SettledKeys -2", "PurgeInterval -3ns", "RedispatchAfter -4ns",
			"BlobsAbove -5", "BlobGrace -6ns",
		} {
			assert.ErrorContains(t, err, want)
		}
	}
	require.NoError(t, inbox.Config{}.Validate())
}

func TestConfigOfAStoreMustFit(t *testing.T) {
	_, err := inbox.NewStore(nil, inbox.Config{})
	require.ErrorContains(t, err, "needs a *sqlx.DB")
	db, err := sqlx.Open("sqlite", ":memory:")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	_, err = inbox.NewStore(db, inbox.Config{Schema: "messaging"})
	require.ErrorContains(t, err, "is for PostgreSQL")
	for _, prefix := range []string{"a", "_", "mr_2_", strings.Repeat("p", 24)} {
		assert.NoError(t, inbox.Config{TablePrefix: prefix}.Validate(), prefix)
	}
	for _, prefix := range []string{"A", "2", "a-b", "a.b", "a\"", "ä", " ", strings.Repeat("p", 25)} {
		assert.Error(t, inbox.Config{TablePrefix: prefix}.Validate(), prefix)
	}
}

func TestConsumerConfigReportsAllProblemsAtOnce(t *testing.T) {
	err := inbox.ConsumerConfig{
		Name: strings.Repeat("n", 256), Timeout: -2,
		Options: inbox.Options{
			Epoch: -1, TwinWait: -3, Retention: time.Minute, Window: -4, ClockSkew: -5, OnCollision: 77, BeforeTimeout: -6,
		},
	}.Validate()
	for _, want := range []string{
		"is longer than 255 bytes", "Epoch -1", "Timeout -2ns", "TwinWait -3ns", "Retention 1m0s is below 1h0m0s",
		"Window -4ns", "ClockSkew -5ns", "OnCollision 77", "BeforeTimeout -6ns",
	} {
		assert.ErrorContains(t, err, want)
	}
	for _, config := range []interface{ Validate() error }{
		inbox.ConsumerConfig{Options: inbox.Options{Epoch: math.MaxInt32 + 1}},
		inbox.QueueConfig{Consumer: "c", Epoch: math.MaxInt32 + 1}, inbox.LeaseConfig{Epoch: math.MaxInt32 + 1},
	} {
		require.ErrorContains(t, config.Validate(), "Epoch 2147483648 is above 2147483647, the greatest", "%T", config)
	}
	err = inbox.QueueConfig{Consumer: "\x00lease\x00" + strings.Repeat("n", 256)}.Validate()
	require.ErrorContains(t, err, "is longer than 255 bytes")
	require.ErrorContains(t, err, "has the prefix that is reserved")
	require.NoError(t, inbox.ConsumerConfig{}.Validate())
	require.NoError(t, inbox.ConsumerConfig{Options: inbox.Options{Retention: inbox.Forever}}.Validate())
	require.NoError(t, inbox.ConsumerConfig{Options: inbox.Options{Retention: inbox.MinRetention}}.Validate())
	require.Error(t, inbox.ConsumerConfig{Options: inbox.Options{Retention: -2}}.Validate())
}

// Whoever wants no limit is told how long one may be, instead of a time in the past.
func TestConsumersRefuseWhatIsTooLong(t *testing.T) {
	const long = time.Duration(math.MaxInt64)
	err := inbox.ConsumerConfig{Timeout: long, Options: inbox.Options{TwinWait: long, BeforeTimeout: long}}.Validate()
	for _, field := range []string{"Timeout", "TwinWait", "BeforeTimeout"} {
		assert.ErrorContains(t, err, field+" 2562047h47m16.854775807s is longer than a century")
	}
	err = inbox.LeaseConfig{Lease: long, Wait: long, Retention: long}.Validate()
	for _, field := range []string{"Lease", "Wait", "Retention"} {
		assert.ErrorContains(t, err, field+" 2562047h47m16.854775807s is longer than a century")
	}
	assert.ErrorContains(t, err, "inbox.Forever")
	err = inbox.QueueConfig{Consumer: "c", Lease: long, MinBackoff: long, MaxBackoff: long}.Validate()
	for _, field := range []string{"Lease", "MinBackoff", "MaxBackoff"} {
		assert.ErrorContains(t, err, field+" 2562047h47m16.854775807s is longer than a century")
	}
	const century = 876_000 * time.Hour
	require.NoError(t, inbox.ConsumerConfig{Timeout: century}.Validate())
	require.NoError(t, inbox.LeaseConfig{Retention: century}.Validate())
	require.NoError(t, inbox.LeaseConfig{Retention: inbox.Forever}.Validate())
}

// words writes a duration as the comments do.
func words(d time.Duration) string {
	for _, unit := range []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"}} {
		if n := d / unit.size; n > 0 && d%unit.size == 0 {
			if n == 1 {
				return "1 " + unit.name
			}
			return fmt.Sprintf("%d %ss", n, unit.name)
		}
	}
	return d.String()
}

// thousands writes a number as the comments do.
func thousands(n int) string { return fmt.Sprintf("%d,%03d", n/1000, n%1000) }

// documented are the defaults as the code has them, in the words of the comments.
func documented(t *testing.T) map[string]string {
	t.Helper()
	store, consumer, lease := inbox.Config{}.WithDefaults(), inbox.ConsumerConfig{}.WithDefaults(), inbox.LeaseConfig{}.WithDefaults()
	business := inbox.ConsumerConfig{Key: inbox.ByPayload()}.WithDefaults()

	require.Nil(t, store.Logger)
	require.Empty(t, store.Dialect)
	require.Empty(t, store.Schema)
	require.Empty(t, store.Namespace)
	require.Nil(t, store.Payloads)
	require.Zero(t, store.BlobsAbove)
	filing := inbox.Config{Blobs: &payload.FileBlobs{}}.WithDefaults()
	require.Equal(t, inbox.ByUUID().String(), consumer.Key.String())
	require.Equal(t, inbox.ByUUID().String(), lease.Key.String())
	require.Equal(t, inbox.CollisionPark, consumer.OnCollision)
	require.Equal(t, inbox.CollisionDrop, business.OnCollision)
	require.Nil(t, consumer.Fingerprint)
	require.Equal(t, consumer.Timeout, consumer.BeforeTimeout)
	require.False(t, consumer.RequireTx)
	require.False(t, consumer.RecordFailures)
	require.Equal(t, inbox.ReplayAllow, consumer.OnReplay)
	require.False(t, consumer.Journal)
	require.Equal(t, inbox.ReplayAllow, lease.OnReplay)
	defaultsFromMetadata(t, consumer)

	unbounded, bounded := inFlight(t, 0), inFlight(t, 10)
	require.Equal(t, 9, bounded)
	require.Equal(t, 1, inFlight(t, 1))

	return map[string]string{
		"Config.Logger":        "Defaults to the logger of the first router whose plugin starts the Store, and until then to slog.Default",
		"Config.Dialect":       "Defaults to what the driver, or else the server, says",
		"Config.Schema":        "Defaults to the connection's search path",
		"Config.TablePrefix":   fmt.Sprintf("Defaults to %q", store.TablePrefix),
		"Config.Namespace":     "Defaults to none",
		"Config.Process":       "Defaults to the host's name and the number of the process",
		"Config.Version":       "Defaults to the version and the commit that Go recorded when it built the program",
		"Config.MaxInFlight":   fmt.Sprintf("Defaults to the pool's size less one, so that a flood leaves a connection for the rest of the service, or %d", unbounded),
		"Config.SettledKeys":   "Defaults to " + thousands(store.SettledKeys) + ",",
		"Config.PurgeInterval": "Defaults to " + words(store.PurgeInterval) + ";",
		"Config.Redispatch":    "RedispatchAfter (default " + words(store.RedispatchAfter) + ")",
		"Config.Payloads":      "Defaults to storing payloads as they came",
		"Config.BlobsAbove":    "Defaults to " + thousands(filing.BlobsAbove) + " with Blobs, and to keeping every payload in its row without",
		"Config.BlobGrace":     "Defaults to " + words(store.BlobGrace) + ".",

		"Inbox.Consumer":         "Defaults to the router's handler name",
		"Options.Epoch":          fmt.Sprintf("Defaults to %d", consumer.Epoch),
		"Inbox.Key":              "Defaults to the message's UUID",
		"Inbox.Timeout":          "Defaults to " + words(consumer.Timeout) + ",",
		"Options.BeforeTimeout":  "Defaults to Timeout;",
		"Options.TwinWait":       "Defaults to " + words(consumer.TwinWait) + ":",
		"Options.MaxInFlight":    "Defaults to no bound of its own",
		"Options.Retention":      "At least an hour, or inbox.Forever. Defaults to " + words(consumer.Retention) + ";",
		"Options.OnCollision":    "Defaults to parking it where the key is the message's own id, and to dropping it where it is a business key",
		"Options.Fingerprint":    "Defaults to the payload",
		"Options.MessageTime":    "Defaults to the metadata fields ce_time and publishTime",
		"Options.ClockSkew":      "Defaults to " + words(consumer.ClockSkew) + ".",
		"Options.Redelivered":    "Defaults to the marks that pubsub/rabbitmq and watermill-amqp v3 set",
		"Options.Describe":       "Defaults to the metadata field name of Watermill's CQRS, else ce_type, and to ce_dataschema",
		"Options.RequireTx":      "By default it is warned about once",
		"Options.RecordFailures": "By default the broker alone remembers it",
		"Options.OnReplay":       "Defaults to inbox.ReplayAllow: it is treated like any delivery",
		"Options.Journal":        "By default a completed message is its claim alone",

		"Deduplicate.Consumer":  "Defaults to the router's handler name",
		"Deduplicate.Epoch":     fmt.Sprintf("Defaults to %d", lease.Epoch),
		"Deduplicate.Key":       "Defaults to the message's UUID",
		"Deduplicate.Lease":     "Defaults to " + words(lease.Lease) + ": the store may be out of reach for " + fmt.Sprint(lease.Lease.Seconds()*2/3) + " seconds",
		"Deduplicate.Wait":      "Defaults to " + words(lease.Wait) + ":",
		"Deduplicate.Retention": "Defaults to " + words(lease.Retention) + ";",
		"Deduplicate.OnReplay":  "Defaults to inbox.ReplayAllow, which treats it like any delivery",
	}
}

func defaultsFromMetadata(t *testing.T, consumer inbox.ConsumerConfig) {
	t.Helper()
	type md = message.Metadata
	now := time.Now().UTC()
	for _, field := range []string{"ce_time", "publishTime"} {
		got, known := consumer.MessageTime(made("a", md{field: now.Format(time.RFC3339Nano)}, ""))
		require.True(t, known)
		require.True(t, now.Equal(got))
	}
	_, known := consumer.MessageTime(made("a", md{"time": now.Format(time.RFC3339Nano)}, ""))
	require.False(t, known)
	require.True(t, consumer.Redelivered(made("a", md{"_watermill_amqp_redelivered": "true"}, "")))
	require.True(t, consumer.Redelivered(made("a", md{"_millrace_amqp_redelivered": "true"}, "")))
	require.False(t, consumer.Redelivered(made("a", nil, "")))
	kind, version := consumer.Describe(made("a", md{"name": "n", "ce_type": "t", "ce_dataschema": "v"}, ""))
	require.Equal(t, "n v", kind+" "+version)
	kind, _ = consumer.Describe(made("a", md{"ce_type": "t"}, ""))
	require.Equal(t, "t", kind)
}

// inFlight is the default on a pool of this size.
func inFlight(t *testing.T, pool int) int {
	t.Helper()
	db, err := sqlx.Open("sqlite", ":memory:")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	db.SetMaxOpenConns(pool)
	store, err := inbox.NewStore(db, inbox.Config{Dialect: "postgres"})
	require.NoError(t, err)
	return inbox.MaxInFlight(store)
}

func TestDefaultsAreAsTheCommentsSay(t *testing.T) {
	rig.DefaultsAsCommented(t, documented(t), [2]string{"config.go", "Config"}, [2]string{"options.go", "Options"},
		[2]string{"../middleware/inbox.go", "Inbox"}, [2]string{"../middleware/deduplicate.go", "Deduplicate"})
}
