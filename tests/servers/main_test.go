package servers_test

import (
	"testing"

	"github.com/millrace-go/millrace/tests/testdb"
)

func TestMain(m *testing.M) {
	testdb.Overlap(4) // the tests mostly wait for servers to start
	m.Run()
}

// keepers test what other tests rely on; two of them run each day.
var keepers = []string{
	"TestPostgresKeepsWhatWasCommittedBeforeAKill", "TestMariaDBKeepsWhatWasCommittedBeforeAKill",
	"TestRabbitMQKeepsAPersistentMessageOverAKill", "TestPairKeepsWhatWasCommittedOverAFailOver", "TestPgBouncerPoolsTransactions",
}
