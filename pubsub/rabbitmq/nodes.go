package rabbitmq

import (
	"net"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// nodePatience bounds a connection's begin, from the dial to the end of the login: a node that is
// cut off must not hold up the attempt at the next one.
const nodePatience = 5 * time.Second

// Nodes returns a function for AmqpConfig.Dial that connects to the nodes of a cluster, each a host
// and a port, in turn: an attempt at a node that does not answer is followed by one at the next.
//
//	config := rabbitmq.NewQueueConfig("amqp://user:password@node1/", rabbitmq.Queues{Quorum: true})
//	config.Connection.AmqpConfig = &amqp091.Config{Dial: rabbitmq.Nodes("node1:5672", "node2:5672", "node3:5672")}
//
// User, virtual host and the name in the certificate are those of the URI; its host and port are not used.
// With no nodes, the function connects to those of the URI.
func Nodes(addresses ...string) func(network, address string) (net.Conn, error) {
	var attempts atomic.Uint64
	dial := amqp091.DefaultDial(nodePatience)
	return func(network, address string) (conn net.Conn, err error) {
		if len(addresses) == 0 {
			return dial(network, address)
		}
		for range addresses {
			next := addresses[(attempts.Add(1)-1)%uint64(len(addresses))]
			if conn, err = dial(network, next); err == nil {
				return conn, nil
			}
		}
		return nil, err
	}
}
