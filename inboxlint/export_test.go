package inboxlint

// Service finds the handlers.
var Service = serviceAnalyzer

// Handlers returns how many handlers an analyzer found, if result is that of the one that looks for them.
func Handlers(result any) int {
	if s, ok := result.(*service); ok && s != nil {
		return len(s.handlers)
	}
	return 0
}
