package rabbitmq

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// farewell is how long an orderly end of a connection may take.
const farewell = 5 * time.Second

// session is one connection, and how to break it when nothing can be written to it.
type session struct {
	*amqp091.Connection
	sever   func()
	lost    <-chan *amqp091.Error   // gets why the connection ended; nil if it is shared
	blocked <-chan amqp091.Blocking // gets when an alarm of the server begins and ends; nil if it is shared
	alarm   atomic.Pointer[string]  // the server's, while it lasts
}

// because returns why the server may not answer.
func (s *session) because() string {
	if alarm := s.alarm.Load(); alarm != nil {
		return ": it takes no messages while it is " + *alarm
	}
	return ""
}

// dial connects and logs in.
func dial(config amqp.ConnectionConfig) (*session, error) {
	settings, err := settingsOf(config)
	if err != nil {
		return nil, err
	}
	var wire net.Conn
	connect := settings.Dial
	settings.Dial = func(network, address string) (net.Conn, error) {
		var err error
		if wire, err = connect(network, address); err != nil {
			return nil, err
		}
		return newBatchingConn(wire), nil
	}
	connected := false
	defer func() {
		if wire != nil && !connected {
			_ = wire.Close() // amqp091 leaves it open if the login fails, or a function of the config panics
		}
	}()
	conn, err := amqp091.DialConfig(config.AmqpURI, settings)
	if err != nil {
		return nil, fmt.Errorf("connect to RabbitMQ: %w", err)
	}
	connected = true
	lost := conn.NotifyClose(make(chan *amqp091.Error, 1)) // before anybody uses it: later the reason may be gone
	blocked := conn.NotifyBlocked(make(chan amqp091.Blocking, 1))
	return &session{Connection: conn, sever: func() { _ = wire.Close() }, lost: lost, blocked: blocked}, nil
}

// settingsOf copies the settings that amqp091 writes to: one Config may serve several connections.
func settingsOf(config amqp.ConnectionConfig) (amqp091.Config, error) {
	settings := amqp091.Config{Locale: "en_US", TLSClientConfig: config.TLSConfig}
	if config.AmqpConfig != nil {
		if config.AmqpConfig.TLSClientConfig != nil && config.TLSConfig != nil {
			return settings, errors.New("both AmqpConfig.TLSClientConfig and TLSConfig are set: set one")
		}
		settings = *config.AmqpConfig
		settings.Properties = maps.Clone(settings.Properties)
		if settings.TLSClientConfig == nil {
			settings.TLSClientConfig = config.TLSConfig
		}
	}
	if settings.TLSClientConfig != nil {
		settings.TLSClientConfig = settings.TLSClientConfig.Clone()
	}
	uri, err := parse(config.AmqpURI)
	if err != nil {
		return settings, err
	}
	if settings.Dial == nil {
		limit := 30 * time.Second
		if uri.ConnectionTimeout != 0 {
			limit = time.Duration(uri.ConnectionTimeout) * time.Millisecond
		}
		settings.Dial = amqp091.DefaultDial(limit)
	}
	return settings, nil
}

// parse reads text, which may contain a password, without quoting it in an error. The causes of a [url.Error] quote a
// part of it: the port, which is the password if that has a / that is not escaped, or what follows a %.
func parse(text string) (amqp091.URI, error) {
	uri, err := amqp091.ParseURI(text)
	var wrong *url.Error
	var number *strconv.NumError // of the port
	switch {
	case errors.As(err, &wrong), errors.As(err, &number):
		err = errors.New("AmqpURI is not a URL: are @ : / ? # and % in its password escaped?")
	case err != nil:
		err = fmt.Errorf("AmqpURI: %w", err)
	}
	return uri, err
}

// end closes the connection in order, and severs it if RabbitMQ does not answer.
func (s *session) end() error {
	silent := time.AfterFunc(farewell, s.sever)
	defer silent.Stop()
	if err := s.Close(); err != nil && !errors.Is(err, amqp091.ErrClosed) {
		return fmt.Errorf("close the connection: %w", err)
	}
	return nil
}

// lossIn adds [ErrNotConnected] to err, with which a call failed, if the connection was lost meanwhile. What a write
// fails with comes before amqp091 calls the connection closed. A refusal by RabbitMQ is no loss, though it may end the
// connection: the same call would get it again.
func (s *session) lossIn(err error) error {
	var answer *amqp091.Error
	var network net.Error
	switch {
	case errors.As(err, &answer) && answer.Server && answer.Code != amqp091.ConnectionForced, // which is a shutdown
		err == nil, !s.IsClosed() && !errors.As(err, &network):
		return err
	}
	return fmt.Errorf("%w: %w", ErrNotConnected, err)
}

// countsReturns reports whether the server's quorum queues count each return of a message as a
// failed delivery, as they do before RabbitMQ 4.3, or whether its version is unknown.
func (s *session) countsReturns() bool {
	version, _ := s.Properties["version"].(string)
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
		return true
	}
	return major < 4 || major == 4 && minor < 3
}

// A source has the connection to use now. A [link] keeps its own; [shared] borrows one.
type source interface {
	current() (*session, error)
	close() error
}

// shared borrows the connection of a wrapper, whose owner closes it.
type shared struct{ wrapper *amqp.ConnectionWrapper }

func (s shared) current() (*session, error) {
	if s.wrapper.Closed() {
		return nil, fmt.Errorf("%w: the shared connection was closed", ErrNotConnected)
	}
	if !s.wrapper.IsConnected() {
		return nil, ErrNotConnected
	}
	conn := s.wrapper.Connection()
	if conn.IsClosed() {
		return nil, ErrNotConnected
	}
	return &session{Connection: conn, sever: func() { _ = conn.CloseDeadline(time.Now()) }}, nil
}

func (s shared) close() error { return nil }
