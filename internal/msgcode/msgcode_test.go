package msgcode_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"runtime"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/msgcode"
)

func made(uuid string, md message.Metadata, payload []byte) *message.Message {
	m := message.NewMessage(uuid, payload)
	m.Metadata = md
	return m
}

func requireEqual(t *testing.T, want, got []*message.Message) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, want[i].UUID, got[i].UUID)
		require.Equal(t, want[i].Metadata, got[i].Metadata) // tells nil from empty
		require.Equal(t, want[i].Payload, got[i].Payload)   // so does this
		require.NotNil(t, got[i].Context(), "not made by hand")
	}
}

func TestMessagesComeBackAsTheyWere(t *testing.T) {
	msgs := []*message.Message{
		made("", nil, nil),
		made("a", message.Metadata{}, []byte{}),
		made("\xff\x00", message.Metadata{"": "", "\xff": "\x00", "k": "v"}, []byte("\x00\xff")),
		made("a", message.Metadata{"k": ""}, bytes.Repeat([]byte("x"), 1<<17)),
	}
	for n := range len(msgs) + 1 {
		got, err := msgcode.Decode(msgcode.Encode(msgs[:n]))
		require.NoError(t, err)
		requireEqual(t, msgs[:n], got)
	}
}

func TestDecodedMessagesDoNotShareMemory(t *testing.T) {
	b := msgcode.Encode([]*message.Message{made("a", nil, []byte("one")), made("b", nil, []byte("two"))})
	got, err := msgcode.Decode(b)
	require.NoError(t, err)
	_ = append(got[0].Payload, "xxxxxxxx"...)
	clear(b)
	assert.Equal(t, "one", string(got[0].Payload))
	assert.Equal(t, "two", string(got[1].Payload))
}

func TestMetadataComesBackAsItWas(t *testing.T) {
	for _, md := range []message.Metadata{nil, {}, {"a": "1", "": "\xff"}} {
		got, err := msgcode.DecodeMetadata(msgcode.AppendMetadata(nil, md))
		require.NoError(t, err)
		require.Equal(t, md, got)
	}
}

func TestDecodeRefusesWhatItDidNotEncode(t *testing.T) {
	whole := msgcode.Encode([]*message.Message{made("a", message.Metadata{"k": "v"}, []byte("p"))})
	for n := range len(whole) {
		_, err := msgcode.Decode(whole[:n])
		require.Error(t, err, "cut to %d of %d bytes", n, len(whole))
	}
	_, err := msgcode.Decode(append(bytes.Clone(whole), 0))
	require.ErrorContains(t, err, "1 bytes left over")
	_, err = msgcode.Decode([]byte{2, 0})
	require.ErrorContains(t, err, "newer release")
	_, err = msgcode.DecodeMetadata(nil)
	require.ErrorContains(t, err, "cut short")
}

// What is announced is not believed: memory is taken only for what is there.
func TestDecodeTakesNoMemoryForAnnouncements(t *testing.T) {
	huge := func(prefix ...byte) []byte { return binary.AppendUvarint(prefix, math.MaxUint64) }
	for name, b := range map[string][]byte{
		"messages":      huge(1),
		"UUID":          huge(1, 1),
		"metadata":      huge(1, 1, 0),
		"metadata key":  huge(1, 1, 0, 3),
		"payload":       huge(1, 1, 0, 0),
		"payload's end": append(huge(1, 1, 0, 0), "left"...),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := decodeWithin(t, b, 1<<16)
			require.Error(t, err)
		})
	}
}

func decodeWithin(t *testing.T, b []byte, limit uint64) ([]*message.Message, error) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	msgs, err := msgcode.Decode(b)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > limit {
		t.Fatalf("%d bytes were decoded with %d bytes of memory", len(b), took)
	}
	return msgs, err
}

// FuzzOutcomeRoundTrip makes up to two messages of its input. shape says what is nil.
func FuzzOutcomeRoundTrip(f *testing.F) {
	for shape := range byte(32) {
		f.Add(shape, "uuid", "key", "value", "other", "value", []byte("payload"))
		f.Add(shape, "", "", "", "", "", []byte{})
		f.Add(shape, "\xff", "\x00", "\xfe", "\x00", "", []byte{0xff, 0})
	}
	f.Fuzz(func(t *testing.T, shape byte, uuid, k1, v1, k2, v2 string, payload []byte) {
		md := message.Metadata{k1: v1, k2: v2}
		if shape&1 != 0 {
			md = message.Metadata{}
		}
		if shape&2 != 0 {
			md = nil
		}
		if shape&4 != 0 {
			payload = nil
		}
		msgs := []*message.Message{made(uuid, md, payload)}
		if shape&8 != 0 {
			msgs = append(msgs, made(uuid, message.Metadata{k2: v1}, []byte(v2)))
		}
		if shape&16 != 0 {
			msgs = nil
		}
		b := msgcode.Encode(msgs)
		got, err := msgcode.Decode(b)
		require.NoError(t, err)
		requireEqual(t, msgs, got)
		require.Equal(t, b, msgcode.Encode(got))
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1})
	f.Add([]byte{1, 0})
	f.Add(binary.AppendUvarint([]byte{1}, math.MaxUint64))
	f.Add(append([]byte{1, 100}, make([]byte, 300)...))
	f.Add(msgcode.Encode([]*message.Message{made("a", message.Metadata{"k": "v"}, []byte("p")), made("", nil, nil)}))
	f.Fuzz(func(t *testing.T, b []byte) {
		msgs, err := msgcode.Decode(b)
		if len(msgs) > len(b) {
			t.Fatalf("%d messages from %d bytes", len(msgs), len(b))
		}
		if err != nil {
			return
		}
		again, err := msgcode.Decode(msgcode.Encode(msgs))
		require.NoError(t, err)
		requireEqual(t, msgs, again)
		_, _ = msgcode.DecodeMetadata(b) // must not panic
	})
}
