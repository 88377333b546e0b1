// Package tests drives the millrace command as a user does: the real binary, on three
// databases. What it prints is compared with the files of testdata, which -update writes.
package tests
