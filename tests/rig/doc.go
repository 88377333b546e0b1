// Package rig holds what stands around a handler in a test: a broker that delivers what it
// is given, a publisher that fails on demand, and an observer that keeps what it is told.
package rig
