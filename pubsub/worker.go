package pubsub

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
)

// worker delivers the stored messages of one subscription.
type worker struct {
	Durable
	queue *inbox.Queue
	topic string
	out   chan<- *message.Message
	hands chan struct{} // holds a token for each message that the handler has

	ready   []*inbox.Leased // taken, but not handed out
	ahead   int             // how many to take at once
	fetched time.Time
	failing bool // the last fetch failed

	patience time.Duration   // how long a suspect waits for the others
	slow     []*inbox.Leased // those for which one waited in vain

	looked chan struct{} // closed after the first fetch that succeeded
	saw    func()        // closes looked

	answers  *sync.WaitGroup // outstanding
	acked    chan *inbox.Leased
	recorded chan struct{} // closed when all answers are recorded

	mu      sync.Mutex
	leased  map[*inbox.Leased]func() // which tells the Store, if it waits for the answer of a handler
	renewed time.Time                // when all of leased last had their lease renewed, or began it later
}

func newWorker(d Durable, queue *inbox.Queue, topic string, out chan<- *message.Message, answers *sync.WaitGroup) *worker {
	looked := make(chan struct{})
	return &worker{
		looked: looked, saw: sync.OnceFunc(func() { close(looked) }),
		Durable: d, queue: queue, topic: topic, out: out, ahead: d.Concurrency,
		hands:    make(chan struct{}, d.Concurrency),
		patience: queue.Config().Lease,
		answers:  answers,
		acked:    make(chan *inbox.Leased, d.Prefetch),
		recorded: make(chan struct{}),
		leased:   make(map[*inbox.Leased]func()),
		renewed:  wallClock(),
	}
}

// afterError is how long a worker waits at most after the database has failed.
const afterError = time.Second

// run delivers until ctx ends. The handler may still answer the messages that it has then.
func (w *worker) run(ctx context.Context) {
	due, leave := w.queue.Listen()
	defer leave()
	go w.finish(ctx)
	go w.heartbeat(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { w.queue.Watch(ctx, w.Poll) })
	defer watching.Wait()
	defer w.putBack(ctx)
	for w.step(ctx, due) {
	}
}

// step hands out messages that are due, and reports whether to go on.
func (w *worker) step(ctx context.Context, due <-chan struct{}) bool {
	hands := w.hand(ctx)
	if hands == 0 {
		return false
	}
	if len(w.ready) > 0 && w.queue.Paused() { // since they were taken
		w.putBack(ctx)
		w.ready = nil
	}
	if len(w.ready) == 0 {
		next := w.fetch(ctx, hands)
		if len(w.ready) == 0 {
			w.giveBack(hands)
			return w.rest(ctx, due, next)
		}
	}
	if w.ready[0].Suspect() {
		w.alone(ctx, hands)
		return ctx.Err() == nil
	}
	n := min(hands, len(w.ready))
	w.giveBack(hands - n)
	return w.handOut(ctx, n)
}

// fetch takes messages that are due, more at once the faster the handler is, and returns how long
// to wait where there are none.
func (w *worker) fetch(ctx context.Context, hands int) (next time.Duration) {
	const soon, late = 100 * time.Millisecond, time.Second
	switch since := time.Since(w.fetched); {
	case since < soon:
		w.ahead *= 2
	case since > late:
		w.ahead = max(w.ahead/2, w.Concurrency)
	}
	w.ahead = min(w.ahead, w.Prefetch)
	w.fetched = time.Now()
	next = w.Poll
	apart(w.queue, func() {
		var err error
		if w.late() { // what the handlers have must not look abandoned
			err = w.extend(ctx, w.noted())
		}
		if !away(err) { // another error may concern a single row, and TakeOut skips rows that are locked
			w.ready, next, err = w.queue.TakeOut(ctx, hands, w.ahead, w.Poll)
		}
		if err == nil {
			w.saw()
		} else {
			next = min(next, afterError)
		}
		if ctx.Err() == nil {
			w.sayFetched(err)
		}
	})
	w.note(w.ready, true)
	return next
}

// sayFetched logs the first fetch that fails, and the first that succeeds again.
func (w *worker) sayFetched(err error) {
	switch {
	case err != nil && !w.failing:
		w.log().Error("pubsub: stored messages could not be fetched; retrying", err, nil)
	case err == nil && w.failing:
		w.log().Info("pubsub: stored messages are fetched again", nil)
	}
	w.failing = err != nil
}

// rest waits until messages may be due, and reports whether to go on.
func (w *worker) rest(ctx context.Context, due <-chan struct{}, next time.Duration) bool {
	timer := time.NewTimer(next)
	defer timer.Stop()
	select {
	case <-due:
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// handOut delivers the next n messages that are ready, with as many hands.
func (w *worker) handOut(ctx context.Context, n int) bool {
	next := w.ready[:n]
	ours, err := w.queue.HandOut(ctx, next...)
	if err != nil {
		w.giveBack(n)
		if ctx.Err() == nil {
			w.log().Error("pubsub: stored messages could not be handed out; retrying", err, nil)
		}
		return w.rest(ctx, nil, min(w.Poll, afterError))
	}
	w.ready = w.ready[n:]
	if lost := n - len(ours); lost > 0 {
		w.giveBack(lost)
		w.note(slices.DeleteFunc(slices.Clone(next), func(l *inbox.Leased) bool { return slices.Contains(ours, l) }), false)
	}
	for _, l := range ours {
		w.deliver(ctx, l)
	}
	return ctx.Err() == nil
}

// hand waits for a free hand, and takes all that are free.
func (w *worker) hand(ctx context.Context) (free int) {
	select {
	case w.hands <- struct{}{}:
	case <-ctx.Done():
		return 0
	}
	for free = 1; ; free++ {
		select {
		case w.hands <- struct{}{}:
		default:
			return free
		}
	}
}

func (w *worker) giveBack(hands int) {
	for range hands {
		<-w.hands
	}
}

// deliver hands a message over and returns a channel that is closed when the handler has answered
// it. If the subscription ends first, the message is ready again, and run puts it back.
func (w *worker) deliver(ctx context.Context, l *inbox.Leased) (answered <-chan struct{}) {
	own, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	end := func() {
		cancel()
		w.giveBack(1)
		close(over)
	}
	msg, err := l.Message(own)
	if err != nil {
		defer end()
		w.note([]*inbox.Leased{l}, false)
		w.log().Error("pubsub: a stored message cannot be read; it is redelivered after its lease", err, nil)
		return over
	}
	w.handed(l)
	select {
	case w.out <- msg:
	case <-ctx.Done():
		defer end()
		w.ready = append(w.ready, l)
		return over
	}
	w.answers.Go(func() {
		defer end()
		select {
		case <-msg.Acked():
			w.acked <- l
		case <-msg.Nacked():
			w.queue.Call(func() { w.failed(ctx, l, l.Fail) })
		}
	})
	return over
}

func (w *worker) note(leased []*inbox.Leased, out bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range leased {
		if answered := w.leased[l]; answered != nil {
			answered()
		}
		if out {
			w.leased[l] = nil
		} else {
			delete(w.leased, l)
		}
	}
}

// handed has the Store wait for the answer to l until it is noted that l is leased no more.
func (w *worker) handed(l *inbox.Leased) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leased[l] = w.Store.Internals().AwaitAnswer()
}

func (w *worker) noted() []*inbox.Leased {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.leased))
}

// beats is how often a lease is renewed in its time.
const beats = 3

// late reports whether a heartbeat was missed: the database was away, or this process was frozen.
func (w *worker) late() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return wallClock().Sub(w.renewed).Abs() > w.queue.Config().Lease*(beats-1)/beats
}

// wallClock returns the time by the clock that goes on while the machine is suspended, as the database's does.
func wallClock() time.Time { return time.Now().Round(0) }

// heartbeat renews the leases of messages that are ready or with the handler, also while the
// service closes.
func (w *worker) heartbeat(ctx context.Context) {
	tick := time.NewTicker(w.queue.Config().Lease / beats)
	defer tick.Stop()
	for closing := ctx.Done(); ; {
		select {
		case <-tick.C:
		case <-closing:
			closing = nil
		}
		leased := w.noted()
		if len(leased) == 0 && ctx.Err() != nil {
			return
		}
		if err := w.extend(ctx, leased); err != nil {
			w.log().Error("pubsub: leases of stored messages could not be renewed; retrying", err, nil)
		}
	}
}

func (w *worker) extend(ctx context.Context, leased []*inbox.Leased) error {
	began := wallClock()
	if err := within(ctx, func(ctx context.Context) error { return w.queue.Extend(ctx, leased) }); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.renewed = began
	return nil
}

func (w *worker) log() watermill.LoggerAdapter {
	return w.Store.Logger().With(watermill.LogFields{
		"consumer": w.queue.Config().Consumer, "epoch": w.Epoch, "topic": w.topic,
	})
}
