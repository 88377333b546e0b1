// Command nacks counts the messages that RabbitMQ has refused and that amqp091's NotifyPublish
// reports as acked. Give it the URI of a broker. See docs/upstream.md.
package main

import (
	"fmt"
	"log"
	"os"

	"github.com/rabbitmq/amqp091-go"
)

const messages, window = 20_000, 500

func main() {
	conn := must(amqp091.Dial(os.Args[1]))
	ch, consumer := must(conn.Channel()), must(conn.Channel())
	full := amqp091.Table{"x-max-length": 45, "x-overflow": "reject-publish"}
	queue := must(ch.QueueDeclare("millrace-nacks", true, false, false, false, full)).Name
	go func() {
		for range must(consumer.Consume(queue, "", true, false, false, false, nil)) { //nolint:revive // it makes room
		}
	}()

	confirms := ch.NotifyPublish(make(chan amqp091.Confirmation, window))
	if err := ch.Confirm(false); err != nil {
		log.Fatal(err)
	}
	var deferred []*amqp091.DeferredConfirmation
	wrong := 0
	compare := func() {
		told := <-confirms
		if told.Ack && !deferred[told.DeliveryTag-1].Wait() {
			wrong++
		}
	}
	for i := range messages {
		if i >= window {
			compare()
		}
		deferred = append(deferred, must(ch.PublishWithDeferredConfirm("", queue, true, false,
			amqp091.Publishing{DeliveryMode: amqp091.Persistent})))
	}
	for range window {
		compare()
	}
	must(ch.QueueDelete(queue, false, false, false))
	fmt.Println(wrong, "messages that RabbitMQ refused are acked by NotifyPublish")
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
