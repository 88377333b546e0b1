package inbox

import (
	"context"
	"slices"
)

type stepNameKey struct{}

// WithStep returns a context that names one of several calls of a handler, so that package httpkey
// can distinguish their requests. The names of nested calls add up. Within the Do of a [Step], they
// begin with the name of the step.
func WithStep(ctx context.Context, name string) context.Context {
	return withSteps(ctx, append(slices.Clip(stepNames(ctx)), name)...)
}

// withSteps returns a context with exactly these names.
func withSteps(ctx context.Context, names ...string) context.Context {
	return context.WithValue(ctx, stepNameKey{}, names)
}

// stepNames returns the names that [WithStep] gave ctx, the outermost first.
func stepNames(ctx context.Context) []string {
	names, _ := ctx.Value(stepNameKey{}).([]string)
	return names
}
