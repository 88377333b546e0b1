package secret_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/internal/secret"
)

func TestWithoutCredentials(t *testing.T) {
	for text, want := range map[string]string{
		`dial "amqp://shop:p4ss@mq.internal:5672/v": refused`: `dial "amqp:[hidden]@mq.internal:5672/v": refused`,
		`parse "amqp://shop:p4ss%zz@mq/v": invalid`:           `parse "amqp:[hidden]@mq/v": invalid`,
		`dial shop:p4:s@s@tcp(db:3306)/x`:                     `dial shop:[hidden]@tcp(db:3306)/x`,
		`host=db user=shop password=p4ss dbname=x`:            `host=db user=shop password=[hidden] dbname=x`,
		`host=db PASSWORD = 'p4 ss' dbname=x`:                 `host=db PASSWORD = [hidden] dbname=x`,
		`dial tcp 127.0.0.1:5672: connect: refused`:           `dial tcp 127.0.0.1:5672: connect: refused`,
	} {
		assert.Equal(t, want, secret.WithoutCredentials(text))
	}
}

func TestPlace(t *testing.T) {
	for dsn, want := range map[string]string{
		`postgres://ada:p4ss@db.internal:5433/shop?sslmode=disable&password=p4ss`: `ada@db.internal:5433/shop`,
		`postgresql://db/shop`:                                     `db/shop`,
		`postgres:///shop?host=/run/postgresql&user=ada`:           `ada@/run/postgresql/shop`,
		`postgres://ada:p%40ss@db`:                                 `ada@db`,
		`postgres://ada:p4@ss@db/shop`:                             `ada@db/shop`,
		`postgres://ada:1/p4ss@db/shop`:                            `[hidden]`,
		`postgres://ada:p/p4ss@db/shop`:                            `[hidden]`,
		`mysql://ada:p4ss@db/shop`:                                 `ada@db/shop`,
		`ada:p4:s@s/p4ss@tcp(db:3306)/shop?tls=true&password=p4ss`: `ada@db:3306/shop`,
		`ada:p4ss@unix(/run/mysqld.sock)/shop`:                     `ada@/run/mysqld.sock/shop`,
		`ada@db/shop`:                                              `ada@db/shop`,
		`ada:p4ss@db`:                                              `ada@db`,
		`ada:p4ss/more@db`:                                         `[hidden]`,
		`host=db port=5433 user=ada password='p4 ss' dbname=shop`:  `ada@db:5433/shop`,
		`user=ada password=p4ss dbname=shop sslpassword = p4ss`:    `ada@/shop`,
		`host=db password=p/p4ss@x user=ada`:                       `ada@db`,
		`sqlite:/var/lib/shop.db?_pragma=key('p4ss')`:              `/var/lib/shop.db`,
		`file:shop.db`:                                             `shop.db`,
		`shop, eu`:                                                 `shop, eu`,
		``:                                                         ``,
	} {
		assert.Equal(t, want, secret.Place(dsn))
		assert.NotContains(t, secret.Place(dsn), "p4", dsn)
	}
}
