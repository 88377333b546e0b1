package inbox

import (
	"context"
	"slices"
)

type stepNameKey struct{}

// WithStep returns a context for one of several calls of a handler, by which package httpkey
// tells their requests apart. Names add up: within a [Step] it tells the requests of the step apart.
func WithStep(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, stepNameKey{}, append(slices.Clip(StepNames(ctx)), name))
}

// StepNames returns the names that [WithStep] gave ctx, the outermost first.
func StepNames(ctx context.Context) []string {
	names, _ := ctx.Value(stepNameKey{}).([]string)
	return names
}
