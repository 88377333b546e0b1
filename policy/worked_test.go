package policy_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/middleware/shadow"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/policy"
)

// arrival is a message and when it is delivered.
type arrival struct {
	at  time.Duration
	msg *message.Message
}

// twoDays are 8000 changes of 400 accounts. Of a hundred, one is delivered again within 40
// seconds, two are sent again under another UUID within two hours, two are late, by up to
// three seconds; one of all is never sent.
func twoDays() (all []arrival) {
	r := rand.New(rand.NewPCG(11, 12))
	within := func(longest time.Duration) time.Duration { return time.Duration(r.Int64N(int64(longest))) }
	for n := range 8000 {
		if n == 7000 {
			continue
		}
		account, version := n/2%400, int64(n/800*2+n%2+1)
		at := time.Duration(n/2)*43*time.Second + time.Duration(n%2)*time.Second
		change := func(uuid string, at time.Duration) {
			msg := message.NewMessage(uuid, []byte(fmt.Sprintf(`{"account": %d, "change": %d}`, account, version)))
			msg.Metadata = message.Metadata{"order_id": fmt.Sprint("order-", n)}
			outbox.Stamp(msg, fmt.Sprint("account-", account), version)
			all = append(all, arrival{at, msg})
		}
		if r.IntN(100) < 2 {
			at += within(3 * time.Second)
		}
		change(fmt.Sprint("uuid-", n), at)
		if r.IntN(100) < 1 {
			change(fmt.Sprint("uuid-", n), at+within(40*time.Second))
		}
		if r.IntN(100) < 2 {
			change(fmt.Sprint("another-", n), at+within(2*time.Hour))
		}
	}
	slices.SortStableFunc(all, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	return all
}

// TestWorkedExample is the example of docs/shadow.md.
func TestWorkedExample(t *testing.T) {
	t.Parallel()
	document, err := os.ReadFile("../docs/shadow.md")
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		watch, err := shadow.New(shadow.Config{Consumer: "accounts", Keys: []inbox.Key{inbox.ByMetadata("order_id")}})
		require.NoError(t, err)
		handle := watch.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })
		now := time.Duration(0)
		for _, a := range twoDays() {
			time.Sleep(a.at - now) // of the bubble
			now = a.at
			_, err := handle(a.msg)
			require.NoError(t, err)
		}
		c := watch.Report().Consumers[0]
		for _, block := range []string{"```\n" + c.String() + "```\n", "```yaml\n" + policy.Suggest(c).String() + "```\n"} {
			assert.True(t, strings.Contains(string(document), block), "docs/shadow.md should have\n%s", block)
		}
		_, err = policy.Read(strings.NewReader(policy.Suggest(c).String()), "suggested.yaml")
		assert.NoError(t, err)
	})
}
