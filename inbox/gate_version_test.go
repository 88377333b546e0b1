package inbox_test

import (
	"errors"
	"math"
	"math/big"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
)

// read is what a source makes of a message.
type read struct {
	name    string
	msg     *message.Message
	want    inbox.Version
	problem string // part of the error
	none    bool   // the message names no version, so that Optional lets it through
}

func (r read) by(source inbox.VersionFunc) func(*testing.T) {
	return func(t *testing.T) {
		versions, err := source(r.msg)
		if r.problem == "" {
			require.NoError(t, err)
			assert.Equal(t, []inbox.Version{r.want}, versions)
			return
		}
		require.ErrorContains(t, err, r.problem)
		assert.Equal(t, r.none, errors.Is(err, inbox.ErrNoVersion))
		assert.Empty(t, versions)
	}
}

func TestVersionFromMetadata(t *testing.T) {
	fields := func(pairs ...string) *message.Message {
		msg := made("u", message.Metadata{}, "")
		for i := 0; i < len(pairs); i += 2 {
			msg.Metadata.Set(pairs[i], pairs[i+1])
		}
		return msg
	}
	stamp := func(aggregate, version string) *message.Message {
		return fields(inbox.AggregateField, aggregate, inbox.VersionField, version)
	}
	event := func(aggregate, version string) *message.Message {
		return fields("ce_partitionkey", aggregate, "ce_sequence", version)
	}
	both := stamp("a", "7")
	both.Metadata.Set("ce_partitionkey", "b")
	both.Metadata.Set("ce_sequence", "8")
	is := func(aggregate string, number int64) inbox.Version {
		return inbox.Version{Aggregate: aggregate, Number: number}
	}
	for _, r := range []read{
		{name: "a stamp", msg: stamp("a", "7"), want: is("a", 7)},
		{name: "zero", msg: stamp("a", "0"), want: is("a", 0)},
		{name: "the greatest", msg: stamp("a", "9223372036854775807"), want: is("a", math.MaxInt64)},
		{name: "any bytes", msg: stamp("\x00\xff ", "1"), want: is("\x00\xff ", 1)},
		{name: "CloudEvents", msg: event("a", "12"), want: is("a", 12)},
		{name: "leading zeros", msg: event("a", "0000012"), want: is("a", 12)},
		{name: "a stamp before CloudEvents", msg: both, want: is("a", 7)},

		{name: "nil", msg: made("u", nil, ""), problem: "neither millrace_aggregate and millrace_version", none: true},
		{name: "no aggregate", msg: stamp("", "7"), problem: `but no "millrace_aggregate"`},
		{name: "no version", msg: stamp("a", ""), problem: `but no "millrace_version"`},
		{name: "half a stamp", msg: fields(inbox.AggregateField, "a"), problem: `but no "millrace_version"`},
		{name: "no sequence", msg: event("a", ""), problem: `but no "ce_sequence"`},
		{name: "no partition key", msg: event("", "1"), problem: `but no "ce_partitionkey"`},

		{name: "a word", msg: stamp("a", "seven"), problem: `of aggregate "a" is "seven", which is not a whole number`},
		{name: "a fraction", msg: stamp("a", "1.0"), problem: "not a whole number"},
		{name: "hexadecimal", msg: stamp("a", "0x7"), problem: "not a whole number"},
		{name: "a space", msg: stamp("a", " 7"), problem: "not a whole number"},
		{name: "CloudEvents' word", msg: event("a", "x"), problem: `"ce_sequence" of aggregate "a" is "x"`},
		{name: "too great", msg: stamp("a", "9223372036854775808"), problem: "does not fit into 64 bits"},
		{name: "too small", msg: stamp("a", "-9223372036854775809"), problem: "does not fit into 64 bits"},
	} {
		t.Run(r.name, r.by(inbox.VersionFromMetadata()))
	}
}

func TestVersionFromJSON(t *testing.T) {
	is := func(aggregate string, number int64) inbox.Version {
		return inbox.Version{Aggregate: aggregate, Number: number}
	}
	payload := func(text string) *message.Message { return made("u", nil, text) }
	account := func(fields string) *message.Message { return payload(`{"account":{` + fields + `}}`) }
	for _, r := range []read{
		{name: "text", msg: account(`"id":"a","version":7`), want: is("a", 7)},
		{name: "number", msg: account(`"id":42,"version":7`), want: is("42", 7)},
		{name: "more than 53 bits", msg: account(`"id":"a","version":9007199254740993`), want: is("a", 1<<53+1)},

		{name: "not JSON", msg: payload(`<account/>`), problem: "not JSON", none: true},
		{name: "Latin-1", msg: account("\"id\":\"M\xfcller\",\"version\":7"), problem: "no Unicode"},
		{name: "half a character", msg: account(`"id":"\ud83d","version":7`), problem: "no Unicode"},
		{name: "two values", msg: payload(`{"account":{"id":"a","version":7}}{}`), problem: "something follows"},
		{name: "no payload", msg: payload(``), problem: "not JSON", none: true},
		{name: "no object", msg: payload(`[{"account":1}]`), problem: `at "account.id"`, none: true},
		{name: "null", msg: payload(`{"account":null}`), problem: `at "account.id"`, none: true},
		{name: "no id", msg: account(`"version":7`), problem: `at "account.id"`, none: true},
		{name: "an empty id", msg: account(`"id":"","version":7`), problem: `at "account.id"`, none: true},
		{name: "an object", msg: account(`"id":{},"version":7`), problem: `at "account.id"`, none: true},
		{name: "no version", msg: account(`"id":"a"`), problem: `at "account.version"`, none: true},
		{name: "a text", msg: account(`"id":"a","version":"7"`), problem: `at "account.version"`, none: true},

		{name: "a fraction", msg: account(`"id":"a","version":1.5`), problem: "not a whole number"},
		{name: "an exponent", msg: account(`"id":"a","version":1e3`), problem: "not a whole number"},
		{name: "too great", msg: account(`"id":"a","version":99999999999999999999`), problem: "does not fit"},
	} {
		t.Run(r.name, r.by(inbox.VersionFromJSON("account.id", "account.version")))
	}
}

func TestVersionNamesItself(t *testing.T) {
	assert.Equal(t, `version 7 of aggregate "a\x00"`, inbox.Version{Aggregate: "a\x00", Number: 7}.String())
}

// FuzzVersionFromMetadata: a number is read as what it is, or refused; what fits is not
// refused.
func FuzzVersionFromMetadata(f *testing.F) {
	for _, number := range []string{
		"1", "-1", "007", "+5", "9223372036854775807", "9223372036854775808", "1_000", "0x1", "1e3", "", "٣",
	} {
		f.Add("a", number)
	}
	source := inbox.VersionFromMetadata()
	f.Fuzz(func(t *testing.T, aggregate, number string) {
		msg := made("u", message.Metadata{inbox.AggregateField: aggregate, inbox.VersionField: number}, "")
		exact, isNumber := new(big.Int).SetString(number, 10)
		versions, err := source(msg)
		if err != nil {
			assert.False(t, isNumber && exact.IsInt64() && aggregate != "", "%q of %q was refused: %v", number, aggregate, err)
			assert.Empty(t, versions)
			return
		}
		require.Len(t, versions, 1)
		assert.Equal(t, aggregate, versions[0].Aggregate)
		require.True(t, isNumber, "%q was read as %d", number, versions[0].Number)
		assert.Equal(t, exact.String(), big.NewInt(versions[0].Number).String())
	})
}
