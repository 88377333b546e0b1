package tests_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/metrics"
	"github.com/millrace-go/millrace/middleware/shadow"
)

// Package metrics does not know package shadow: what the one counts is what the other reports.
func TestWhatShadowSeesIsCounted(t *testing.T) {
	t.Parallel()
	b := &bed{T: t, registry: prometheus.NewPedanticRegistry()}
	m, err := metrics.NewBuilder(b.registry, metrics.Config{})
	require.NoError(t, err)
	w, err := shadow.New(shadow.Config{Consumer: "billing", Observers: []shadow.Observer{m.Shadow()}})
	require.NoError(t, err)
	handle := w.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })
	msg := newMessage("paid", "x")
	for range 3 {
		_, err := handle(msg.Copy())
		require.NoError(t, err)
	}
	require.Equal(t, 2, w.Report().Consumers[0].Keys[0].Duplicates)
	b.expect(t, `
		millrace_shadow_deliveries_total{by=uuid,consumer=billing,result=first} 1
		millrace_shadow_deliveries_total{by=uuid,consumer=billing,result=duplicate} 2
	`)
}
