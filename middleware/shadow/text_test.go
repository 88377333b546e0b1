package shadow_test

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/middleware/shadow"
)

// few is a stream that a person can count.
var few = []delivery{
	{uuid: "1", aggregate: "a", version: 1},
	{uuid: "3", aggregate: "a", version: 3, pause: 10 * time.Second},
	{uuid: "3", aggregate: "a", version: 3, pause: 20 * time.Second},
	{uuid: "2", aggregate: "a", version: 2, pause: 40 * time.Second},
	{uuid: "5", aggregate: "a", version: 5, pause: 10 * time.Second},
	{uuid: "5", payload: "other", pause: 10 * time.Second},
}

func TestText(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := watched(t, shadow.Config{Consumer: "accounts"}, few)
		assert.Equal(t, `accounts: 6 deliveries, 0 failed, up to 1 at once
         key  missing  sample  deliveries  duplicates  collisions  retries  at once  apart p99  longest
        uuid      0 %   100 %           6      16.7 %      16.7 %      0 %        0        20s      20s
  cloudevent    100 %   100 %           0         0 %         0 %      0 %        0         0s       0s
     payload      0 %   100 %           6      66.7 %         0 %      0 %        0      1m20s    1m20s
versions by metadata: 5 of 1 aggregates (sample 100 %); 1 deliveries name none, 0 an invalid one
  in order 20 %, early 40 %, late 20 %, repeated 20 %, retries 0 %, forgotten 0 %; a gate would hold 40 %
  late by up to 1 versions (p99 1) and 1m (p99 1m)
  open: 1, of 1 aggregates, for up to 10s
`, c.String())
	})
}

func TestReportSurvivesJSON(t *testing.T) {
	t.Parallel()
	all, _ := dirty.deliveries(1)
	w, err := shadow.New(shadow.Config{})
	require.NoError(t, err)
	for _, d := range all[:1000] {
		_, _ = w.Middleware(d.handle)(d.message())
	}
	r := w.Report()
	text, err := json.Marshal(r)
	require.NoError(t, err)
	var again shadow.Report
	require.NoError(t, json.Unmarshal(text, &again))
	assert.Equal(t, r.Consumers, again.Consumers)
	assert.Contains(t, string(text), `"in_order":`)
}

// A line every LogEvery, while there are deliveries.
func TestLogLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := watermill.NewCaptureLogger()
		w, err := shadow.New(shadow.Config{Consumer: "accounts", Logger: log, LogEvery: time.Minute})
		require.NoError(t, err)
		for range 3 {
			for _, d := range few { // 90 seconds
				time.Sleep(d.pause) // of the bubble
				_, _ = w.Middleware(d.handle)(d.message())
			}
		}
		lines := log.Captured()[watermill.InfoLogLevel]
		require.Len(t, lines, 3, "after 70, 160 and 250 seconds")
		assert.Equal(t, "shadow: rates of the deliveries", lines[0].Msg)
		assert.Equal(t, watermill.LogFields{
			"consumer": "accounts", "count": 4, "failures": 0,
			"keys": "uuid: 25 % duplicates, 0 % collisions, 0 % missing; " +
				"payload: 75 % duplicates, 0 % collisions, 0 % missing",
			"versions": "metadata: 25 % early, 25 % late, 25 % repeated, 0 open",
		}, lines[0].Fields)
	})
}

// A function that panics is logged once, not with each delivery.
func TestPanicIsLoggedOnce(t *testing.T) {
	t.Parallel()
	log := watermill.NewCaptureLogger()
	config := rude(log)
	config.LogEvery = time.Hour
	w, err := shadow.New(config)
	require.NoError(t, err)
	for range 3 {
		_, _ = w.Middleware(fine)(message.NewMessage("1", nil))
	}
	require.Len(t, log.Captured()[watermill.ErrorLogLevel], 1)
	assert.EqualError(t, log.Captured()[watermill.ErrorLogLevel][0].Err, "panic: key")
	assert.Contains(t, w.Report().String(), "panicked 9 times")
}

// told counts what it is told.
type told int

func (n *told) ObserveShadow(context.Context, string, string, string) { *n++ }

func TestAnObserverThatPanicsKeepsNothingFromOthers(t *testing.T) {
	t.Parallel()
	one, both := told(0), told(0)
	for heard, observers := range map[*told][]shadow.Observer{&one: {&one}, &both: {panics{}, &both, panics{}}} {
		w, err := shadow.New(shadow.Config{Observers: observers})
		require.NoError(t, err)
		_, err = w.Middleware(fine)(message.NewMessage("1", nil))
		require.NoError(t, err)
		assert.NotZero(t, *heard)
	}
	assert.Equal(t, one, both)
}

func TestConfigIsValidated(t *testing.T) {
	t.Parallel()
	_, err := shadow.New(shadow.Config{
		Keys:     []inbox.Key{inbox.ByJSON("a"), inbox.ByJSON("a")},
		Versions: map[string]inbox.VersionFunc{"": nil},
		MaxKeys:  -1, LogEvery: -1,
	})
	require.Error(t, err)
	for _, want := range []string{`json:"a" twice`, "without a name", `no function under ""`, "MaxKeys -1", "LogEvery -1ns"} {
		assert.ErrorContains(t, err, want)
	}
	_, err = shadow.New(shadow.Config{Keys: []inbox.Key{inbox.ByUUID()}})
	assert.NoError(t, err, "it is tried anyway")
}
