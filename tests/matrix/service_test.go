package matrix_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/inboxtest"
	"github.com/millrace-go/millrace/inbox/payload"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pubsub"
	"github.com/millrace-go/millrace/tests/rig"
)

const (
	consumer = "book"
	topic    = "payments"
)

// service is a consumer with features, and what is expected of it.
type service struct {
	config  inbox.Config
	inbox   millrace.Inbox
	gate    *millrace.VersionGate
	durable *pubsub.Durable
	outside []message.HandlerMiddleware // of Inbox
	between []message.HandlerMiddleware // Inbox and gate

	blobFiles bool // payloads are kept in dir
	dir       string
	outbox    bool // what the handler returns goes there
	onPark    bool // publishes what is parked
	audited   bool // a handler with Deduplicate has the messages too
	panics    bool // the handler, where it stumbles
	edits     bool // the handler changes the message that it is given
	early     time.Duration
	epochs    bool // all processes but the first have epoch 1, and the stream from its beginning
	former    bool // and another key, beside which they look under the first one's

	letters  []letter
	inFlight int
	packed   bool // payloads come packed
	forged   bool // there is another payload under one UUID
	produces bool // the handler returns a message
	latest   bool // a message that was overtaken may be left out

	mu     sync.Mutex
	ran    int             // handlers
	failed map[string]bool // errors that the router got
	plays  map[string]*performance
}

// with returns a service with these features.
func with(dir string, all ...feature) *service {
	s := &service{letters: common[:len(common):len(common)], inFlight: 1, dir: dir}
	for _, f := range all {
		f.use(s)
	}
	if s.durable != nil { // else the broker delivers it for ever
		s.letters = append(s.letters, letter{"t1", "tom", "t", 1, terminal})
	}
	return s
}

// life is one process of the service.
type life struct {
	*service

	play  string // which play it is in
	epoch int
	era   int // the epoch, where what was handled in the one before counts for nothing

	mu      sync.Mutex
	stumble map[string]bool // messages that have failed
}

// wire is the service's main.
func (s *service) wire(p *inboxtest.Process) error {
	l, err := s.begin(p)
	if err != nil {
		return err
	}
	store, err := s.store(p)
	if err != nil {
		return err
	}
	p.OnClose(store.Close)
	in := s.inbox
	in.Store, in.Epoch = store, l.epoch
	if in.Key = l.key(); l.former && l.epoch == 1 {
		in.FormerKey = s.firstKey()
	}
	var out *outbox.Publisher
	if s.outbox || s.onPark {
		if out, err = relayed(p); err != nil {
			return err
		}
	}
	if s.outbox {
		in.Outbox = out
	}
	p.Router.AddPlugin(store.Plugin())
	if err := in.Validate(); err != nil {
		return err
	}
	sub, err := l.subscriber(p, store, out)
	if err != nil {
		return err
	}
	h := p.Router.AddHandler(consumer, topic, sub, "receipts", p.Publisher, l.handle)
	h.AddMiddleware(l.witness)
	h.AddMiddleware(s.outside...)
	h.AddMiddleware(in.Middleware)
	h.AddMiddleware(s.between...)
	if s.gate != nil {
		if err := s.gate.Validate(); err != nil {
			return err
		}
		h.AddMiddleware(s.gate.Middleware)
	}
	if s.panics {
		h.AddMiddleware(middleware.Recoverer)
	}
	if s.audited {
		l.audit(p, store)
	}
	return nil
}

// firstKey is the key of the first process.
func (s *service) firstKey() inbox.Key {
	if s.inbox.Key.String() == inbox.ByUUID().String() {
		return inbox.ByUUID()
	}
	return s.inbox.Key
}

// key is another one in epoch 1, if a feature wants that.
func (l *life) key() inbox.Key {
	switch {
	case !l.former || l.epoch == 0:
		return l.firstKey()
	case l.forged: // the key is in the reason for which one of the two is parked
		return inbox.ByFunc("of another source", l.firstKey().Of)
	}
	return inbox.Joined(inbox.ByMetadata(customerField), l.firstKey())
}

// begin notes that a process starts, and learns which play it is in.
func (s *service) begin(p *inboxtest.Process) (*life, error) {
	ctx := context.Background()
	_, err := p.DB.ExecContext(ctx, p.DB.Rebind(`INSERT INTO lives (play) VALUES (?)`), watermill.NewUUID())
	if err != nil {
		return nil, err
	}
	var lives []string
	if err := p.DB.SelectContext(ctx, &lives, `SELECT play FROM lives ORDER BY id`); err != nil {
		return nil, err
	}
	l := &life{service: s, play: lives[0], stumble: map[string]bool{}}
	if s.epochs && len(lives) > 1 {
		l.epoch, l.era = 1, 1
	}
	if s.former {
		l.era = 0
	}
	return l, nil
}

func (s *service) store(p *inboxtest.Process) (*inbox.Store, error) {
	config := s.config
	config.Logger = p.Logger
	config.PurgeInterval = 10 * time.Second // the janitor closes what was handled under its former key
	if s.blobFiles {
		blobs, err := payload.NewFileBlobs(s.dir)
		if err != nil {
			return nil, err
		}
		config.Blobs = blobs
	}
	return inbox.NewStore(p.DB, config)
}

// subscriber is the broker's, behind a queue if a feature wants one.
func (l *life) subscriber(p *inboxtest.Process, store *inbox.Store, out *outbox.Publisher) (message.Subscriber, error) {
	sub := p.Subscriber
	if l.epoch > 0 {
		sub = both{sub, p.Group("from the beginning")}
	}
	if l.durable == nil {
		return sub, nil
	}
	queue := *l.durable
	queue.Store, queue.Epoch, queue.Key = store, l.epoch, l.key()
	if began := time.Now(); l.early > 0 {
		queue.NotBefore = func(*message.Message) time.Time { return began.Add(l.early) }
	}
	if l.onPark {
		queue.OnPark = func(msg *message.Message, _ string) error { return out.Publish("dead", msg) }
	}
	return queue.Decorate(sub)
}

// relayed returns a publisher whose messages a relay of p sends.
func relayed(p *inboxtest.Process) (*outbox.Publisher, error) {
	out, err := outbox.NewPublisher(p.DB, outbox.Config{})
	if err != nil {
		return nil, err
	}
	relay, err := outbox.NewRelay(p.DB, p.Publisher, outbox.RelayConfig{
		Lease: lease, Poll: 20 * time.Millisecond, Drain: time.Second,
		MinBackoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond, MaxAttempts: outbox.Unlimited,
	})
	if err != nil {
		return nil, err
	}
	p.Go(relay.Run)
	return out, nil
}

// handle has an effect, and returns a receipt if the service produces.
func (l *life) handle(msg *message.Message) ([]*message.Message, error) {
	l.service.mu.Lock()
	l.ran++
	l.service.mu.Unlock()
	if err := rig.Exec(msg.Context(), `INSERT INTO effects (uuid, epoch, payload) VALUES (?, ?, ?)`, msg.UUID, l.era, string(msg.Payload)); err != nil {
		return nil, err
	}
	if l.edits {
		edit(msg)
	}
	if err := l.trouble(l.letter(msg.UUID)); err != nil {
		return nil, err
	}
	if !l.produces {
		return nil, nil
	}
	receipt := message.NewMessage(watermill.NewUUID(), []byte("receipt"))
	receipt.Metadata = message.Metadata{sourceField: msg.UUID, playField: l.play, epochField: strconv.Itoa(l.era)}
	return []*message.Message{receipt}, nil
}

// edit changes a message in every way in which a handler can.
func edit(msg *message.Message) {
	for i := range msg.Payload {
		msg.Payload[i] = '#'
	}
	msg.Payload = []byte("edited")
	msg.Metadata.Set(customerField, "nobody")
	msg.Metadata.Set(orderField, "none")
}

// trouble is what the handler of a message fails with.
func (l *life) trouble(of letter) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case of.fate == terminal:
		return inbox.Terminal(errors.New("the handler cannot do this"))
	case of.fate == troubled && !l.stumble[of.uuid]:
		l.stumble[of.uuid] = true
		if l.panics {
			panic("the handler stumbles")
		}
		return errors.New("the handler stumbles")
	}
	return nil
}

// witness notes what the router is told.
func (l *life) witness(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		produced, err := next(msg)
		if err != nil {
			l.service.mu.Lock()
			l.failed[err.Error()] = true
			l.service.mu.Unlock()
		}
		return produced, err
	}
}

// audit adds a second handler of the same messages, which has no transaction.
func (l *life) audit(p *inboxtest.Process, store *inbox.Store) {
	guarded := millrace.Deduplicate{Claims: store.Leases(), Lease: lease / 4}
	h := p.Router.AddConsumerHandler("audit", topic, p.Group("audit"), func(msg *message.Message) error {
		_, err := p.DB.ExecContext(msg.Context(), p.DB.Rebind(`INSERT INTO audited (uuid) VALUES (?)`), msg.UUID)
		return err
	})
	h.AddMiddleware(guarded.Middleware)
}

// readable returns an error unless the payload is one that a handler may see.
func (s *service) readable(msg *message.Message) error {
	for _, text := range s.letter(msg.UUID).texts(s) {
		if bytes.Contains(msg.Payload, []byte(text)) {
			return nil
		}
	}
	return fmt.Errorf("what is this: %q", msg.Payload)
}

// unpack is a middleware that changes payloads, and knows what it cannot unpack.
func unpack(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		text, packed := bytes.CutPrefix(msg.Payload, []byte(packedMark))
		if !packed {
			return nil, fmt.Errorf("not packed: %q", msg.Payload)
		}
		msg.Payload = text
		return next(msg)
	}
}

// both is a subscriber of what two subscribers have.
type both [2]message.Subscriber

// Subscribe delivers what either has.
func (b both) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	var open sync.WaitGroup
	for _, sub := range b {
		in, err := sub.Subscribe(ctx, topic)
		if err != nil {
			return nil, err
		}
		open.Go(func() {
			for msg := range in {
				out <- msg
			}
		})
	}
	go func() {
		open.Wait()
		close(out)
	}()
	return out, nil
}

// Close does nothing: a process is closed as a whole.
func (both) Close() error { return nil }
