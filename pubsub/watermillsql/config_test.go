package watermillsql_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/pubsub/watermillsql"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestConfigReportsEveryProblem(t *testing.T) {
	db := testdb.On(t, "sqlite")
	_, err := watermillsql.NewPublisher(db.DB, watermillsql.Config{Dialect: "oracle", Timeout: -1})
	assert.EqualError(t, err, "watermillsql: invalid Config: "+strings.Join([]string{
		`Dialect "oracle" is not one of postgres, mysql`,
		`Timeout -1ns is not positive`,
	}, "\n"))

	_, err = watermillsql.NewSubscriber(db.DB, watermillsql.SubscriberConfig{
		InboxTimeout: time.Minute, AckDeadline: time.Minute, BatchSize: -1,
		PollInterval: -1, ResendInterval: -1, RetryInterval: -1, Dialect: "sqlite",
	})
	assert.EqualError(t, err, "watermillsql: invalid SubscriberConfig: "+strings.Join([]string{
		`ConsumerGroup is empty: set it to the service's name, so that no other service takes its messages`,
		`PollInterval -1ns is not positive`,
		`ResendInterval -1ns is not positive`,
		`RetryInterval -1ns is not positive`,
		`Dialect "sqlite" is not one of postgres, mysql`,
		`AckDeadline 1m0s is not above InboxTimeout 1m0s: a message would be redelivered while its handler runs`,
		`BatchSize -1 is negative`,
	}, "\n"))
}

func TestSubscriberConfig(t *testing.T) {
	for problem, config := range map[string]watermillsql.SubscriberConfig{
		"":                                 {ConsumerGroup: strings.Repeat("ü", 255)},
		"longer than 255 characters":       {ConsumerGroup: strings.Repeat("x", 256)},
		`"billing " begins or ends with`:   {ConsumerGroup: "billing "},
		"is that of the publishers":        {ConsumerGroup: "millrace-publishers"},
		`"\xff" is not text`:               {ConsumerGroup: "\xff"},
		`"a\x00b" is not text`:             {ConsumerGroup: "a\x00b"},
		"InboxTimeout -1s is not positive": {ConsumerGroup: "a", InboxTimeout: -time.Second},
		"AckDeadline 25s is not above InboxTimeout 25s": {ConsumerGroup: "a", AckDeadline: 25 * time.Second},
		"AckDeadline -1ns is not above":                 {ConsumerGroup: "a", AckDeadline: -1},
		"ResendInterval 10s is not below 10s, which AckDeadline leaves after InboxTimeout": {
			ConsumerGroup: "a", ResendInterval: 10 * time.Second,
		},
		"ResendInterval 1s is not below 900ms": {ConsumerGroup: "a", AckDeadline: 25*time.Second + 900*time.Millisecond},
	} {
		err := config.Validate()
		if problem == "" {
			assert.NoError(t, err)
			continue
		}
		assert.ErrorContains(t, err, problem)
	}
	assert.NoError(t, watermillsql.SubscriberConfig{ConsumerGroup: "a", ResendInterval: 10*time.Second - 1}.Validate())
	assert.NoError(t, watermillsql.SubscriberConfig{ConsumerGroup: "a", InboxTimeout: time.Hour}.Validate(),
		"the deadline grows with the timeout")
	assert.NoError(t, watermillsql.Config{}.Validate())
}

func TestConstructorsNeedADatabase(t *testing.T) {
	_, err := watermillsql.NewPublisher(nil, watermillsql.Config{})
	require.ErrorContains(t, err, "needs a *sqlx.DB")
	_, err = watermillsql.NewSubscriber(nil, watermillsql.SubscriberConfig{ConsumerGroup: "a"})
	require.ErrorContains(t, err, "needs a *sqlx.DB")
	db := testdb.On(t, "sqlite")
	_, err = watermillsql.NewPublisher(db.DB, watermillsql.Config{})
	require.ErrorContains(t, err, "watermill-sql v3 does not support sqlite")
	_, err = watermillsql.Schema("sqlite", "orders")
	require.ErrorContains(t, err, `dialect "sqlite" is not one of`)
}
