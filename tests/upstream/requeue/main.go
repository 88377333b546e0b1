// Command requeue counts how often RabbitMQ delivers a message of a quorum queue with a limit of
// three deliveries to a consumer that always gives it back, by basic.nack and by basic.reject.
// Give it the URI of a broker. See docs/upstream.md.
package main

import (
	"fmt"
	"log"
	"os"
	"time"

	"github.com/rabbitmq/amqp091-go"
)

const enough = 100

func main() {
	conn := must(amqp091.Dial(os.Args[1]))
	fmt.Println("basic.nack: ", deliveries(conn, func(d amqp091.Delivery) error { return d.Nack(false, true) }))
	fmt.Println("basic.reject: ", deliveries(conn, func(d amqp091.Delivery) error { return d.Reject(true) }))
}

func deliveries(conn *amqp091.Connection, giveBack func(amqp091.Delivery) error) (n int) {
	ch := must(conn.Channel())
	limit := amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": 3}
	queue := must(ch.QueueDeclare("millrace-requeue", true, false, false, false, limit)).Name
	if err := ch.Publish("", queue, true, false, amqp091.Publishing{}); err != nil {
		log.Fatal(err)
	}
	delivered := must(ch.Consume(queue, "", false, false, false, false, nil))
	for n < enough {
		select {
		case d := <-delivered:
			n++
			if err := giveBack(d); err != nil {
				log.Fatal(err)
			}
		case <-time.After(time.Second):
			must(ch.QueueDelete(queue, false, false, false))
			return n
		}
	}
	must(ch.QueueDelete(queue, false, false, false))
	return n
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
