package rabbitmq_test

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// Methods of AMQP 0-9-1: class and number.
const (
	connectionStart   = 10<<16 | 10
	connectionStartOK = 10<<16 | 11
	connectionTune    = 10<<16 | 30
	connectionOpen    = 10<<16 | 40
	connectionOpenOK  = 10<<16 | 41
	connectionClose   = 10<<16 | 50
	connectionCloseOK = 10<<16 | 51
	channelOpen       = 20<<16 | 10
	channelOpenOK     = 20<<16 | 11
	channelClose      = 20<<16 | 40
	channelCloseOK    = 20<<16 | 41
	basicPublish      = 60<<16 | 40
	basicAck          = 60<<16 | 80
	basicNack         = 60<<16 | 120
	confirmSelect     = 85<<16 | 10
	confirmSelectOK   = 85<<16 | 11
)

const methodFrame = 1

// impostor speaks as much AMQP as a publisher needs, and answers what was published as the
// test wants it: RabbitMQ's order of confirms cannot be chosen.
type impostor struct {
	t      testing.TB
	server net.Listener
	expect int                  // how many messages are published on a channel before it answers
	answer func(w *frameWriter) // called each time
}

// pose returns the URI of an impostor that answers whenever n more messages were published on a channel.
func pose(t testing.TB, n int, answer func(w *frameWriter)) (uri string) {
	t.Helper()
	server, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	im := &impostor{t: t, server: server, expect: n, answer: answer}
	go im.serve()
	return "amqp://guest:guest@" + server.Addr().String() + "/"
}

func (im *impostor) serve() {
	for {
		conn, err := im.server.Accept()
		if err != nil {
			return
		}
		go im.talk(conn)
	}
}

func (im *impostor) talk(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // it may be closed
	in, w := bufio.NewReader(conn), &frameWriter{conn: conn}
	if _, err := io.ReadFull(in, make([]byte, 8)); err != nil { // "AMQP0091"
		return
	}
	w.method(0, connectionStart, 0, 9, uint32(0), "PLAIN", "en_US")
	published := make(map[uint16]int)
	for {
		channel, method, err := readMethod(in)
		if err != nil {
			return
		}
		switch method {
		case connectionStartOK:
			w.method(0, connectionTune, uint16(2047), uint32(131_072), uint16(0))
		case connectionOpen:
			w.method(0, connectionOpenOK, byte(0))
		case connectionClose:
			w.method(0, connectionCloseOK)
			return
		case channelOpen:
			published[channel] = 0
			w.method(channel, channelOpenOK, uint32(0))
		case channelClose:
			w.method(channel, channelCloseOK)
		case confirmSelect:
			w.method(channel, confirmSelectOK)
		case basicPublish:
			if published[channel]++; published[channel]%im.expect == 0 {
				w.channel, w.tag = channel, uint64(published[channel])
				im.answer(w)
			}
		}
	}
}

// readMethod skips what is no method.
func readMethod(in io.Reader) (channel uint16, method uint32, err error) {
	for {
		var head [7]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return 0, 0, err
		}
		payload := make([]byte, binary.BigEndian.Uint32(head[3:])+1) // and the end of the frame
		if _, err := io.ReadFull(in, payload); err != nil {
			return 0, 0, err
		}
		if head[0] == methodFrame {
			return binary.BigEndian.Uint16(head[1:]), binary.BigEndian.Uint32(payload), nil
		}
	}
}

// frameWriter writes methods. An error shows when the next one is read.
type frameWriter struct {
	conn    net.Conn
	channel uint16
	tag     uint64 // of the last message published on it
}

func (w *frameWriter) ack(tag uint64, multiple bool) {
	w.method(w.channel, basicAck, tag, flag(multiple))
}
func (w *frameWriter) nack(tag uint64, multiple bool) {
	w.method(w.channel, basicNack, tag, flag(multiple))
}

func (w *frameWriter) closeChannel(code uint16, reason string) {
	w.method(w.channel, channelClose, code, short(reason), uint32(0))
}

func (w *frameWriter) hangUp() { _ = w.conn.Close() }

func flag(set bool) byte {
	if set {
		return 1
	}
	return 0
}

// short is a string with its length in one byte; others have it in four.
type short string

func (w *frameWriter) method(channel uint16, method uint32, arguments ...any) {
	payload := binary.BigEndian.AppendUint32(nil, method)
	for _, argument := range arguments {
		switch v := argument.(type) {
		case int:
			payload = append(payload, byte(v))
		case byte:
			payload = append(payload, v)
		case uint16:
			payload = binary.BigEndian.AppendUint16(payload, v)
		case uint32:
			payload = binary.BigEndian.AppendUint32(payload, v)
		case uint64:
			payload = binary.BigEndian.AppendUint64(payload, v)
		case short:
			payload = append(append(payload, byte(len(v))), v...)
		case string:
			payload = append(binary.BigEndian.AppendUint32(payload, uint32(len(v))), v...)
		}
	}
	frame := binary.BigEndian.AppendUint16([]byte{methodFrame}, channel)
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(payload)))
	_, _ = w.conn.Write(append(append(frame, payload...), 0xCE))
}
