package tests_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/payload"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestPayloadsAreNotReadUnlessShown: there may be many, and large ones.
func TestPayloadsAreNotReadUnlessShown(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		s.exec(`ALTER TABLE millrace_outbox DROP COLUMN payload`)
		for args, code := range map[string]int{"list": 0, "list --topic payments --json": 0, "retry 1": 2, "retry --all-matching": 2, "list --payload --reason x": 1} {
			r := s.run(append([]string{"outbox"}, strings.Fields(args)...)...)
			assert.Equal(t, code, r.code, "%s: %s", args, r.err)
		}
	}))
}

// TestAPayloadInJSONIsWhole: also where it is no text.
func TestAPayloadInJSONIsWhole(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		payload := []byte("\x08\x96\x01\xff\x00")
		s.exec(`UPDATE millrace_messages SET payload = ?`, payload)
		s.exec(`UPDATE millrace_outbox SET payload = ?`, payload)
		for _, args := range [][]string{{"list"}, {"outbox", "list"}} {
			var shown struct {
				Messages []struct {
					Payload       *string
					PayloadBase64 []byte `json:"payload_base64"`
				}
			}
			r := s.run(append(args, "--payload", "--reason", "x", "--json")...)
			require.NoError(t, json.Unmarshal([]byte(r.out), &shown), r.err)
			require.NotEmpty(t, shown.Messages)
			assert.Equal(t, payload, shown.Messages[0].PayloadBase64)
			assert.Nil(t, shown.Messages[0].Payload)
			assert.Contains(t, s.run(append(args, "--payload", "--reason", "x")...).out, "\ufffd\ufffd")
		}
	}))
}

// TestAPayloadOfWhatIsRetriedMeanwhile: the others are shown, which the audit says were seen.
func TestAPayloadOfWhatIsRetriedMeanwhile(t *testing.T) {
	t.Parallel()
	s := newShop(t, testdb.On(t, "sqlite"))
	s.exec(`CREATE TRIGGER another AFTER INSERT ON millrace_audit BEGIN UPDATE millrace_outbox SET status = 1 WHERE id = 2; END`)
	list := []string{"outbox", "list", "--payload", "--reason", "x"}
	r := s.run(list...)
	assert.Zero(t, r.code, r.err)
	assert.Contains(t, r.out, `payload of 1: {"order":50}`)
	assert.Contains(t, r.out, "payload of 2: the message was retried or discarded meanwhile")
	s.exec(`UPDATE millrace_outbox SET status = 3 WHERE id = 2`)
	assert.Contains(t, s.run(append(list, "--json")...).out, `"unreadable": "the message was retried or discarded meanwhile"`)
	assert.Equal(t, 2, s.count(`SELECT COUNT(*) FROM millrace_audit`))
}

// TestASealedResultIsNoReasonToShowNothing: the command has no keys.
func TestASealedResultIsNoReasonToShowNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		codec, err := payload.NewAESGCM(payload.KeyRing{Current: "1", Keys: map[string][]byte{"1": make([]byte, 32)}})
		require.NoError(t, err)
		store := rig.NewStore(t, s.db.DB, inbox.Config{WithoutPlugin: true, Payloads: codec})
		mail, err := store.Handler(inbox.ConsumerConfig{Name: "mail"}, func(msg *message.Message) ([]*message.Message, error) {
			return nil, inbox.SetResult(msg.Context(), map[string]int{"mails": 4711})
		})
		require.NoError(t, err)
		msg := order(77)
		msg.SetContext(t.Context())
		_, err = mail(msg)
		require.NoError(t, err)
		r := s.run("explain", id(77), "--payload", "--reason", "x")
		assert.Zero(t, r.code, r.err)
		assert.Regexp(t, `result +\d+ bytes, which cannot be shown: .*the payload is sealed`, r.out)
		assert.NotContains(t, r.out+r.err, "4711")
	}))
}

// TestAPayloadUnderAHandledKey: with CollisionFail the key of a parked message may be that of one that was handled.
func TestAPayloadUnderAHandledKey(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		const claim = ` WHERE message_id IN (SELECT message_id FROM millrace_messages WHERE id = 4)`
		const says = "its key belongs to a message that was handled: discard it"
		s.exec(`UPDATE millrace_claims SET result = 1` + claim)
		args := []string{"payload", "replace", "4", "--file", "testdata/corrected.json"}
		for _, more := range [][]string{nil, {"--reason", "x", "--yes"}} {
			r := s.run(append(args, more...)...)
			assert.Equal(t, 5, r.code, r.out)
			assert.Contains(t, r.err, says)
		}
		s.exec(`DELETE FROM millrace_claims` + claim) // it is forgotten
		r := s.run(append(args, "--reason", "x", "--yes")...)
		assert.Equal(t, 5, r.code, r.out)
		assert.Contains(t, r.err, says)
	}))
}
