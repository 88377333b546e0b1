// Command ping waits until a service of the tests answers at one of the DSNs and
// prints that one, or says why none does. With -version a space and the version of the
// server follow.
//
//	ping [-wait 60s] [-version] postgres|mysql|rabbitmq|redis|nats|kafka DSN...
package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	_ "github.com/go-sql-driver/mysql" // registers "mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // registers "pgx"
	amqp "github.com/rabbitmq/amqp091-go"
)

func main() {
	wait := flag.Duration("wait", 0, "how long to try again")
	tell := flag.Bool("version", false, "print the version too")
	flag.Parse()
	if flag.NArg() < 2 {
		fmt.Fprintln(os.Stderr, "usage: ping [-wait 60s] [-version] postgres|mysql|rabbitmq|redis|nats|kafka DSN...")
		os.Exit(2)
	}
	dsn, version, err := poll(flag.Arg(0), flag.Args()[1:], *wait)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", flag.Arg(0), err)
		os.Exit(1)
	}
	if *tell {
		dsn += " " + version
	}
	fmt.Println(dsn)
}

func poll(service string, dsns []string, wait time.Duration) (dsn, version string, err error) {
	deadline := time.After(wait)
	again := time.NewTicker(250 * time.Millisecond)
	defer again.Stop()
	for {
		var errs []error
		for _, dsn := range dsns {
			version, err := ping(service, dsn)
			if err == nil {
				return dsn, version, nil
			}
			errs = append(errs, err)
		}
		select {
		case <-deadline:
			return "", "", errors.Join(errs...)
		case <-again.C:
		}
	}
}

// ping returns the server's version.
func ping(service, dsn string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	switch service {
	case "postgres":
		return pingSQL(ctx, "pgx", dsn, "SHOW server_version")
	case "mysql":
		return pingSQL(ctx, "mysql", dsn, "SELECT version()")
	case "rabbitmq":
		return pingRabbitMQ(dsn)
	case "redis":
		return pingRedis(ctx, dsn)
	case "nats":
		return pingNATS(ctx, dsn)
	case "kafka":
		return pingKafka(ctx, dsn)
	default:
		return "", fmt.Errorf("unknown service %q", service)
	}
}

func pingSQL(ctx context.Context, driver, dsn, query string) (version string, err error) {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return "", err
	}
	err = db.QueryRowContext(ctx, query).Scan(&version)
	version, _, _ = strings.Cut(version, " ") // Debian's package follows
	return version, errors.Join(err, db.Close())
}

func pingRabbitMQ(dsn string) (string, error) {
	conn, err := amqp.DialConfig(dsn, amqp.Config{Dial: amqp.DefaultDial(5 * time.Second)})
	if err != nil {
		return "", err
	}
	return fmt.Sprint(conn.Properties["version"]), conn.Close()
}

// pingRedis takes any reply for an answer: one that asks for a password too.
func pingRedis(ctx context.Context, dsn string) (version string, err error) {
	conn, err := dial(ctx, dsn)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprint(conn, "PING\r\nINFO server\r\n"); err != nil {
		return "", err
	}
	lines := bufio.NewReader(conn)
	reply, err := lines.ReadString('\n')
	switch {
	case err != nil:
		return "", err
	case strings.HasPrefix(reply, "-NOAUTH"):
		return "", nil
	case !strings.HasPrefix(reply, "+PONG"):
		return "", fmt.Errorf("unexpected reply %q", reply)
	}
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return "", err
		}
		if version, found := strings.CutPrefix(line, "redis_version:"); found {
			return strings.TrimSpace(version), nil
		}
	}
}

// pingNATS reads what a server says of itself when it is called: the tests need JetStream.
func pingNATS(ctx context.Context, dsn string) (string, error) {
	conn, err := dial(ctx, dsn)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return "", err
	}
	greeting, isNATS := strings.CutPrefix(line, "INFO ")
	if !isNATS {
		return "", fmt.Errorf("unexpected greeting %q", line)
	}
	var info struct {
		JetStream bool   `json:"jetstream"`
		Version   string `json:"version"`
	}
	if err := json.Unmarshal([]byte(greeting), &info); err != nil {
		return "", fmt.Errorf("greeting %q: %w", line, err)
	}
	if !info.JetStream {
		return "", errors.New("JetStream is not enabled: start nats-server with --jetstream")
	}
	return info.Version, nil
}

// pingKafka asks which versions of which requests a broker takes: ApiVersions, which is number 18, in its version 0, as
// request 1 of an unnamed client. It does not learn the version.
func pingKafka(ctx context.Context, address string) (version string, err error) {
	conn, err := dial(ctx, "kafka://"+address)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte{0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff}); err != nil {
		return "", err
	}
	var head struct {
		Size, Request int32
		Error         int16
	}
	if err := binary.Read(conn, binary.BigEndian, &head); err != nil {
		return "", err
	}
	if head.Request != 1 || head.Error != 0 {
		return "", fmt.Errorf("unexpected reply %+v", head)
	}
	return "", nil
}

// dial connects to the host of a URL, for a few seconds.
func dial(ctx context.Context, dsn string) (net.Conn, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(5 * time.Second))
}
