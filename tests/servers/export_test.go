package servers

// Sweep is the clean-up that each new instance begins with.
func Sweep() { sweep(disk()) }
