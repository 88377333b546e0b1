package skeleton

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"

	"github.com/millrace-go/millrace/internal/dialect"
)

// Databases and Brokers are the choices.
var (
	Databases = []string{dialect.PostgresName, dialect.MySQLName, dialect.SQLiteName}
	Brokers   = []string{"rabbitmq", "kafka", "nats", "redis", "sql"}
)

// Service says what a service is made of.
type Service struct {
	Module   string // its path
	Database string
	Broker   string
	Outbox   bool // messages leave with the commit of the handler
	Gate     bool // the messages of an account are applied in their order; it needs the queue, and has it
	Queue    bool // what fails is tried again from a table
	Policy   bool // the rules of the handlers are in a file
}

// Validate returns every problem of s at once.
func (s Service) Validate() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if s.Module == "" {
		problem("what is the module called? give --module, such as example.com/billing")
	} else if err := module.CheckImportPath(s.Module); err != nil {
		problem("--module: %w", err)
	}
	if !slices.Contains(Databases, s.Database) {
		problem("--database %s: there are %s", s.Database, strings.Join(Databases, ", "))
	}
	if !slices.Contains(Brokers, s.Broker) {
		problem("--broker %s: there are %s", s.Broker, strings.Join(Brokers, ", "))
	}
	if s.Database == dialect.SQLiteName && s.Broker == "sql" {
		problem("--broker sql needs PostgreSQL or MySQL: watermill-sql has no tables for SQLite")
	}
	return errors.Join(problems...)
}

// Durable reports whether the service has a queue.
func (s Service) Durable() bool { return s.Queue || s.Gate }

// HoldsUp reports whether messages that fail hold up others at the broker, for ever if nobody stores them. RabbitMQ has its
// delivery limit.
func (s Service) HoldsUp() bool { return s.Broker != "rabbitmq" }

// Declares reports whether the broker has no topics but those that were made before.
func (s Service) Declares() bool { return s.Broker != "redis" }

// Strategy is the strategy of the policy.
func (s Service) Strategy() string {
	switch {
	case s.Gate:
		return "gate"
	case s.Queue:
		return "durable"
	}
	return "inbox"
}

// maxName bounds the name of a service: watermill-sql's topics have up to 45 characters.
const maxName = 32

var (
	major   = regexp.MustCompile(`^v[0-9]+$`)
	strange = regexp.MustCompile(`[^a-z0-9]+`)
)

// Name is the name of the service, from the end of its module's path: lower-case letters, digits and hyphens, which is
// what topics, groups and containers may be called.
func (s Service) Name() string {
	name := path.Base(s.Module)
	if major.MatchString(name) {
		name = path.Base(path.Dir(s.Module))
	}
	name = strange.ReplaceAllString(strings.ToLower(name), "-")
	name = strings.TrimLeft(name, "-0123456789")
	name = strings.TrimRight(name[:min(len(name), maxName)], "-")
	return cmp.Or(name, "service")
}

// Schema is the name of the service's database, and TestSchema that of the one for the crash kit.
func (s Service) Schema() string { return strings.ReplaceAll(s.Name(), "-", "_") }

// TestSchema has the word test in it, without which the kit empties nothing.
func (s Service) TestSchema() string { return s.Schema() + "_test" }

// Driver is the name for sql.Open.
func (s Service) Driver() string {
	return map[string]string{dialect.PostgresName: "pgx", dialect.MySQLName: "mysql", dialect.SQLiteName: "sqlite"}[s.Database]
}

// DatabaseURL is the connection string of a database on a host, with the settings of docs/databases.md. For SQLite the
// host is the folder.
func (s Service) DatabaseURL(host, schema string) string {
	switch s.Database {
	case dialect.PostgresName:
		return "postgres://postgres@" + host + ":5432/" + schema + "?idle_in_transaction_session_timeout=30000&lock_timeout=10000"
	case dialect.MySQLName:
		return "root@tcp(" + host + ":3306)/" + schema + "?transaction_isolation=%27READ-COMMITTED%27&innodb_lock_wait_timeout=10" +
			"&idle_write_transaction_timeout=30&interpolateParams=true"
	}
	return "file:" + path.Join(host, schema+".db") +
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)"
}

// DatabaseHost is where the containers find the database.
func (s Service) DatabaseHost() string {
	return map[string]string{dialect.PostgresName: "postgres", dialect.MySQLName: "mariadb", dialect.SQLiteName: "/data"}[s.Database]
}

// DashboardDSN is how the command calls the database in its container.
func (s Service) DashboardDSN() string {
	if s.Database == dialect.SQLiteName {
		return "sqlite:/data/" + s.Schema() + ".db"
	}
	return s.DatabaseURL(s.DatabaseHost(), s.Schema())
}

// LocalHost is where a program outside of the containers finds it.
func (s Service) LocalHost() string {
	if s.Database == dialect.SQLiteName {
		return ""
	}
	return "127.0.0.1"
}

// BrokerURL is where the containers find the broker.
func (s Service) BrokerURL() string {
	return map[string]string{
		"rabbitmq": "amqp://guest:guest@rabbitmq:5672/", "kafka": "kafka:9094", "nats": "nats://nats:4222", "redis": "redis://redis:6379/0",
	}[s.Broker]
}

// Servers are the containers that the service needs.
func (s Service) Servers() (names []string) {
	if s.Database != dialect.SQLiteName {
		names = append(names, s.DatabaseHost())
	}
	if s.Broker != "sql" {
		names = append(names, s.Broker)
	}
	return names
}

// DatabaseTitle and BrokerTitle are names for readers.
func (s Service) DatabaseTitle() string {
	return map[string]string{dialect.PostgresName: "PostgreSQL", dialect.MySQLName: "MariaDB", dialect.SQLiteName: "SQLite"}[s.Database]
}

// BrokerTitle is the broker's name for readers.
func (s Service) BrokerTitle() string {
	return map[string]string{
		"rabbitmq": "RabbitMQ", "kafka": "Kafka", "nats": "NATS JetStream", "redis": "Redis", "sql": "tables of the database",
	}[s.Broker]
}

// Versions are those of the modules that a service requires.
type Versions struct {
	Go  string
	all map[string]string
}

// brokerVersions are those of modules that the command does not require itself: the ones that Millrace is tested with.
var brokerVersions = map[string]string{
	"github.com/IBM/sarama":                          "v1.43.3",
	"github.com/ThreeDotsLabs/watermill-kafka/v3":    "v3.0.6",
	"github.com/ThreeDotsLabs/watermill-nats/v2":     "v2.1.3",
	"github.com/ThreeDotsLabs/watermill-redisstream": "v1.4.5",
	"github.com/nats-io/nats.go":                     "v1.37.0",
	"github.com/redis/go-redis/v9":                   "v9.17.2",
}

// VersionsOf returns the versions that a go.mod has, and those of the brokers' modules.
func VersionsOf(goMod string) (Versions, error) {
	file, err := modfile.ParseLax("go.mod", []byte(goMod), nil)
	if err != nil {
		return Versions{}, err
	}
	v := Versions{Go: file.Go.Version, all: make(map[string]string)}
	for name, version := range brokerVersions {
		v.all[name] = version
	}
	for _, r := range file.Require {
		v.all[r.Mod.Path] = r.Mod.Version
	}
	return v, nil
}

// own is the path of Millrace's root module.
const own = "github.com/millrace-go/millrace"

// required are the modules that the service imports, sorted.
func (s Service) required() []string {
	all := []string{
		own, own + "/metrics", "github.com/ThreeDotsLabs/watermill", "github.com/jmoiron/sqlx",
		"github.com/prometheus/client_golang", "golang.org/x/sync",
		map[string]string{
			dialect.PostgresName: "github.com/jackc/pgx/v5", dialect.MySQLName: "github.com/go-sql-driver/mysql", dialect.SQLiteName: "modernc.org/sqlite",
		}[s.Database],
	}
	all = append(all, map[string][]string{
		"kafka": {"github.com/IBM/sarama", "github.com/ThreeDotsLabs/watermill-kafka/v3"},
		"nats":  {"github.com/ThreeDotsLabs/watermill-nats/v2", "github.com/nats-io/nats.go"},
		"redis": {"github.com/ThreeDotsLabs/watermill-redisstream", "github.com/redis/go-redis/v9"},
	}[s.Broker]...)
	slices.Sort(all)
	return all
}
