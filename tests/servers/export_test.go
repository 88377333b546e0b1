package servers

// Sweep lets a test see what the next instance does first.
var Sweep = sweep
