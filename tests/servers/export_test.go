package servers

// Sweep is for tests.
func Sweep() { sweep(disk()) }
