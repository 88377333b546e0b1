package rabbitmq_test

import (
	"testing"

	"github.com/millrace-go/millrace/tests/testdb"
)

func TestMain(m *testing.M) {
	testdb.Overlap(6) // they wait for a network that is silent, or a broker that starts
	m.Run()
}
