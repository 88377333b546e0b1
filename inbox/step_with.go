package inbox

import (
	"context"
	"slices"
)

type stepNameKey struct{}

// WithStep returns a context for one of several calls of a handler, by which package httpkey
// tells their requests apart. Names add up. A [Step] begins them anew with its own: within its Do, WithStep
// tells the requests of the step apart.
func WithStep(ctx context.Context, name string) context.Context {
	return withSteps(ctx, append(slices.Clip(stepNames(ctx)), name)...)
}

// withSteps returns a context for which names are all there are.
func withSteps(ctx context.Context, names ...string) context.Context {
	return context.WithValue(ctx, stepNameKey{}, names)
}

// stepNames returns the names that [WithStep] gave ctx, the outermost first.
func stepNames(ctx context.Context) []string {
	names, _ := ctx.Value(stepNameKey{}).([]string)
	return names
}
