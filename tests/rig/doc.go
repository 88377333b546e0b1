// Package rig provides the surroundings of a handler in a test: a subscriber that the test feeds, a
// publisher that fails on demand, an observer that records events, and short helpers for stores.
package rig
