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
		`host=db sslpassword=p4ss`:                            `host=db sslpassword=[hidden]`,
		`dial "amqp://shop:p4ss@mq": refused`:                 `dial "amqp://shop:[hidden]@mq": refused`,
		`parse postgres://shop:p4@s/s@db?sslmode=disable: no`: `parse postgres://shop:[hidden]@db?sslmode=disable: no`,
		`nats://shop:p4ss@a, nats://:p4ss@b`:                  `nats://shop:[hidden]@a, nats://:[hidden]@b`,
		`dial amqp://mq:5672, of ada@shop.example`:            `dial amqp://mq:5672, of ada@shop.example`,
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
		`ada:p4?ss@tcp(db:3306)/shop?parseTime=true`:               `ada@db:3306/shop`,
		`ada:p4/s?s@tcp(db:3306)`:                                  `[hidden]`,
		`ada:p4ss@tcp([::1]:3306)/shop`:                            `ada@[::1]:3306/shop`,
		`ada:p4ss/shop`:                                            `[hidden]`,
		`db:3306/shop`:                                             `db:3306/shop`,
		`postgres://ada:12?p4@db/shop`:                             `[hidden]`,
		`postgres://ada:12#p4@db/shop`:                             `[hidden]`,
		`postgres://ada:p@p4?ss@db/shop`:                           `[hidden]`,
		`ada:p4ss@unix(/run/mysqld.sock)/shop`:                     `ada@/run/mysqld.sock/shop`,
		`ada@db/shop`:                                              `ada@db/shop`,
		`ada:p4ss@db`:                                              `ada@db`,
		`ada:p4ss/more@db`:                                         `[hidden]`,
		`host=db port=5433 user=ada password='p4 ss' dbname=shop`:  `ada@db:5433/shop`,
		`user=ada password=p4ss dbname=shop sslpassword = p4ss`:    `ada@/shop`,
		`host=db password=p/p4ss@x user=ada`:                       `ada@db`,
		`sqlite:/var/lib/shop.db?_pragma=key('p4ss')`:              `/var/lib/shop.db`,
		`file:shop.db`:                                             `shop.db`,
		`shop, eu: the primary`:                                    `shop, eu: the primary`,
		`/var/shop.db?_pragma=key('p4/p4')`:                        `/var/shop.db`,
		`/var/shop.db?_pragma=key('p4@p4/p4')`:                     `[hidden]`,
		`ada:p4ss@cloudsql(project:region:shop)/shop`:              `ada@project:region:shop/shop`,
		``: ``,
	} {
		assert.Equal(t, want, secret.Place(dsn))
		assert.NotContains(t, secret.Place(dsn), "p4", dsn)
	}
}
