package inbox

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// While a machine is suspended, its monotonic clock stands still, and leases end all the same.
func TestALeaseEndsWhileTheMachineIsSuspended(t *testing.T) {
	now := time.Now()
	sure := now.Add(time.Minute)
	require.True(t, lasts(sure))
	require.False(t, lasts(now.Add(-time.Minute)))
	require.False(t, lasts(time.Time{}))

	const seconds = 30                                  // the bits of a time.Time below its seconds
	*(*uint64)(unsafe.Pointer(&sure)) -= 120 << seconds //nolint:gosec // only so two clocks disagree
	require.True(t, now.Before(sure), "by the monotonic clock")
	require.Equal(t, -time.Minute, sure.Round(0).Sub(now.Round(0)), "by that of the machine")
	require.False(t, lasts(sure))
}
