package durable_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/inbox/payload"
	"github.com/millrace-go/millrace/tests/rig"
)

// subjects is a key for each person, who is named in the metadata, and how the service that
// keeps the keys is.
type subjects struct {
	mu   sync.Mutex
	keys map[string][]byte
	down error
	lost map[string]error // of these persons alone
}

func (s *subjects) SealKey(ctx context.Context, info payload.Info) (string, []byte, error) {
	s.mu.Lock()
	person := info.Metadata.Get("person")
	if _, known := s.keys[person]; !known {
		if s.keys == nil {
			s.keys = make(map[string][]byte)
		}
		s.keys[person] = make([]byte, 32)
		_, _ = rand.Read(s.keys[person])
	}
	s.mu.Unlock()
	key, err := s.OpenKey(ctx, info, person)
	return person, key, err
}

func (s *subjects) OpenKey(_ context.Context, _ payload.Info, person string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmp.Or(s.down, s.lost[person]); err != nil {
		return nil, err
	}
	if key := s.keys[person]; key != nil {
		return key, nil
	}
	return nil, inbox.ErrErased
}

func (s *subjects) erase(person string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[person] = nil
}

func (s *subjects) lose(person string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost == nil {
		s.lost = make(map[string]error)
	}
	s.lost[person] = err
}

func (s *subjects) failWith(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = err
}

// storeWith returns another store on the database.
func (b *bed) storeWith(config inbox.Config) *inbox.Store {
	b.Helper()
	config.PurgeInterval, config.WithoutPlugin = time.Hour, true
	return rig.NewStore(b, b.db.DB, config)
}

// sealing returns a store that seals payloads with keys, and has other settings, if any.
func (b *bed) sealing(keys payload.Keys, configs ...inbox.Config) *inbox.Store {
	b.Helper()
	config := inbox.Config{}
	for _, c := range configs {
		config = c
	}
	var err error
	config.Payloads, err = payload.NewAESGCM(keys)
	require.NoError(b, err)
	return b.storeWith(config)
}

func of(person, payload string) *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), []byte(payload))
	msg.Metadata.Set("person", person)
	return msg
}

// queue is that of a Durable, without its worker.
func (b *bed) queue(store *inbox.Store) *inbox.Queue {
	b.Helper()
	return rig.Queue(b, store, inbox.QueueConfig{
		Consumer: consumer, Lease: 20 * time.Second, MinBackoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond,
	})
}

// beside handles one message after the other, of a queue whose messages may fail three times, until done.
func (b *bed) beside(store *inbox.Store, next func() *message.Message, done func() bool) {
	b.Helper()
	q := rig.Queue(b, store, inbox.QueueConfig{
		Consumer: consumer, MaxAttempts: 3, MinBackoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond,
	})
	rig.Eventually(b, "other messages are handled meanwhile", func() bool {
		require.NoError(b, q.Put(b.Context(), "orders", next()))
		require.NoError(b, q.Finish(b.Context(), rig.Take(b, q, 10)...))
		return done()
	})
}

// stored returns what the only open row keeps of its payload.
func (b *bed) stored() []byte {
	b.Helper()
	var rows [][]byte
	require.NoError(b, b.db.SelectContext(b.Context(), &rows, `SELECT payload FROM millrace_messages`))
	require.Len(b, rows, 1)
	return rows[0]
}

// only returns the only open message.
func (b *bed) only(store *inbox.Store, status admin.Status) admin.Message {
	b.Helper()
	messages, err := admin.New(store).Find(b.Context(), admin.Filter{Status: status}, 0, 10)
	require.NoError(b, err)
	require.Len(b, messages, 1)
	return messages[0]
}
