// Package migrating plays what docs/migrating.md tells: services that change to Millrace while
// they run.
package migrating
