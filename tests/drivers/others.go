package testdb

// others stands for that of the package over which drivers.go is laid.
var others = map[string]string{}
