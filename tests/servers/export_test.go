package servers

// Sweep is the clean-up that each new instance begins with.
func Sweep() { sweep(disk()) }

// FreePort is the port that a new instance gets.
var FreePort = freePort
