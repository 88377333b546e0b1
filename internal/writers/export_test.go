package writers

// Len is how many pools have a queue.
func Len() (n int) {
	queues.Range(func(any, any) bool {
		n++
		return true
	})
	return n
}
