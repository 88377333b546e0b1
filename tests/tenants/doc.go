// Package tenants tests a service that has several databases, of which one is down.
package tenants
