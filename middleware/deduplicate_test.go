package middleware_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/leasetest"
)

func memoryLeases(t testing.TB, config inbox.MemoryLeasesConfig) *inbox.Leases {
	t.Helper()
	leases, err := inbox.NewMemoryLeases(config)
	require.NoError(t, err)
	return leases
}

func TestDeduplicateInMemory(t *testing.T) {
	leasetest.Run(t, func(t *testing.T) leasetest.Open {
		store := memoryLeases(t, inbox.MemoryLeasesConfig{}).Store()
		return func(*testing.T) inbox.LeaseStore { return store }
	})
}
