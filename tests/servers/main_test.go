package servers_test

import (
	"testing"

	"github.com/millrace-go/millrace/tests/testdb"
)

func TestMain(m *testing.M) {
	testdb.Overlap(4) // they wait for servers that start
	m.Run()
}

// keepers test what others rely on, two of them a day.
var keepers = []string{
	"TestPostgresKeepsWhatWasCommittedBeforeAKill", "TestMariaDBKeepsWhatWasCommittedBeforeAKill",
	"TestRabbitMQKeepsAPersistentMessageOverAKill", "TestPairKeepsWhatWasCommittedOverAFailOver", "TestPgBouncerPoolsTransactions",
}
