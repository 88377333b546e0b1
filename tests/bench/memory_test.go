package bench_test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/lease"
	millrace "github.com/millrace-go/millrace/middleware"
)

// BenchmarkDeduplicate is P8: Deduplicate with its claims in memory against Watermill's
// Deduplicator, both alone and with their defaults, on messages that are all different. Each turn
// of each is a process of its own: what one keeps in memory makes garbage collections rarer, and
// the garbage of the other cheaper.
func BenchmarkDeduplicate(b *testing.B) {
	rates, lost := series{}, map[string]int{}
	perTurn, turns := pick(300_000, 2_000), pick(5, 1) // a turn goes beyond the Limit; all are more than a million
	for range turns {
		for _, side := range []string{"theirs", "ours", "least"} {
			rate, handled := inProcess(b, side, perTurn)
			rates.add(side, rate)
			lost[side] += perTurn - handled
		}
	}
	atLeast("P8", 5).judge(b, rates.over("ours", "theirs"), "µs a message: ours %.2f, Watermill's %.2f",
		1e6/median(rates["ours"]), 1e6/median(rates["theirs"]))
	atLeast("P8/least", 5).judge(b, rates.over("least", "theirs"), "µs a message: %.2f", 1e6/median(rates["least"]))
	atMost("P8/lost", 0).judge(b, []float64{float64(lost["ours"])},
		"of %d distinct messages; Watermill's lost %d", turns*perTurn, lost["theirs"])
}

// deduplicatorAlone is the variable by which a process learns its part of P8.
const deduplicatorAlone = "MILLRACE_BENCH_DEDUPLICATOR"

var handledAlone = regexp.MustCompile(`([0-9.]+) a second, ([0-9]+) handled`)

// inProcess has a process of its own measure one side with n messages.
func inProcess(b *testing.B, side string, n int) (perSecond float64, handled int) {
	b.Helper()
	self, err := os.Executable()
	require.NoError(b, err)
	cmd := exec.CommandContext(b.Context(), self, "-test.run=^$", "-test.bench=^BenchmarkDeduplicatorAlone$", "-test.benchtime=1x")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", deduplicatorAlone, side, n))
	out, err := cmd.CombinedOutput()
	require.NoError(b, err, string(out))
	found := handledAlone.FindStringSubmatch(string(out))
	require.NotNil(b, found, string(out))
	perSecond, err = strconv.ParseFloat(found[1], 64)
	require.NoError(b, err)
	handled, err = strconv.Atoi(found[2])
	require.NoError(b, err)
	return perSecond, handled
}

// BenchmarkDeduplicatorAlone is what [inProcess] runs.
func BenchmarkDeduplicatorAlone(b *testing.B) {
	var side string
	var n int
	if _, err := fmt.Sscan(os.Getenv(deduplicatorAlone), &side, &n); err != nil {
		b.Skip("BenchmarkDeduplicate runs it")
	}
	var handled atomic.Int64
	wrap := (&middleware.Deduplicator{}).Middleware
	switch side {
	case "ours":
		leases := inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{})
		wrap = millrace.Deduplicate{Claims: leases, Consumer: "billing"}.Middleware
	case "least":
		wrap = (&leastMemory{inFlight: map[uuid]bool{}, confirmed: map[uuid]int64{}}).middleware
	}
	h := wrap(func(*message.Message) ([]*message.Message, error) {
		handled.Add(1)
		return nil, nil
	})
	rate := distinct(b, h, 0, n)
	fmt.Printf("%f a second, %d handled\n", rate, handled.Load())
}

// leastMemory is the least program that remembers a message once it was handled: a table of those in flight, one of those
// that were handled, and their order, to forget the oldest of 250,000. It compares no payloads, bounds no run, and nothing waits for a copy.
type leastMemory struct {
	mu        sync.Mutex
	inFlight  map[uuid]bool
	confirmed map[uuid]int64
	order     []uuid
	next      int
}

type uuid [36]byte

func (m *leastMemory) middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		var key uuid
		copy(key[:], msg.UUID)
		m.mu.Lock()
		if _, known := m.confirmed[key]; known || m.inFlight[key] {
			m.mu.Unlock()
			return nil, nil
		}
		m.inFlight[key] = true
		m.mu.Unlock()
		produced, err := h(msg)
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.inFlight, key)
		if err != nil {
			return nil, err
		}
		m.confirmed[key] = time.Now().Add(time.Hour).UnixNano()
		if len(m.order) < 250_000 {
			m.order = append(m.order, key)
			return produced, nil
		}
		delete(m.confirmed, m.order[m.next])
		m.order[m.next], m.next = key, (m.next+1)%len(m.order)
		return produced, nil
	}
}

// distinct handles n different messages and returns how many per second. Making them is
// not counted.
func distinct(b *testing.B, h message.HandlerFunc, from, n int) (perSecond float64) {
	b.Helper()
	const batch = 10_000
	var took time.Duration
	for first := from; first < from+n; first += batch {
		messages := make([]*message.Message, 0, batch)
		for i := first; i < min(first+batch, from+n); i++ {
			text := []byte(`{"account":4711,"amount":"12.50","reference":"invoice ` + strconv.Itoa(i) + `"}`)
			messages = append(messages, message.NewMessage(watermill.NewUUID(), text))
		}
		var next atomic.Int64
		began := time.Now()
		parallel(b, func() (done bool, err error) {
			i := next.Add(1) - 1
			if i >= int64(len(messages)) {
				return true, nil
			}
			_, err = h(messages[i])
			return false, err
		})
		took += time.Since(began)
	}
	return float64(n) / took.Seconds()
}
