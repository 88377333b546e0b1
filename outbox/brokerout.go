package outbox

import (
	"context"
	"database/sql"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-go/millrace/internal/database"
	"github.com/millrace-go/millrace/internal/secret"
)

// brokerOut is what an operator sees of an outage of the broker.
type brokerOut struct {
	text  string
	began time.Time
}

// newBrokerOut returns the error at l for operators, who may not see passwords and payloads.
func newBrokerOut(l *letter, err error, began time.Time) *brokerOut {
	const shortest, most = 4, 500 // hiding a shorter payload would garble the text
	said := err.Error()
	if payload := string(l.msg.Payload); len(payload) >= shortest {
		quoted := strconv.Quote(payload)
		said = strings.NewReplacer(payload, secret.Concealed, quoted[1:len(quoted)-1], secret.Concealed).Replace(said)
	}
	return &brokerOut{cut(secret.WithoutCredentials(said), most), began}
}

// note writes to the relay's row whether messages get through to the broker. If that fails, the next
// beat tries again.
func (k *keeper) note(ctx context.Context) {
	out := k.broker.Load()
	if out == k.noted {
		return
	}
	var said sql.NullString
	var lasted sql.NullInt64
	if out != nil {
		said = sql.NullString{String: out.text, Valid: true}
		lasted = sql.NullInt64{Int64: time.Since(out.began).Microseconds(), Valid: true}
	}
	if _, err := k.db.Exec(ctx, k.sql.NoteBroker, said, lasted, k.lease.token); err == nil {
		k.noted = out
	} else if ctx.Err() == nil && tellsAgain(&k.notedAt, 2) {
		k.log.Error("outbox: the relay could not note for operators whether the broker is out; retrying", database.Explain(err), nil)
	}
}
