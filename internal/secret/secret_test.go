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
