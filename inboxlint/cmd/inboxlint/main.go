// Command inboxlint finds mistakes in the handlers of Millrace:
//
//	inboxlint ./...
//	go vet -vettool=$(which inboxlint) ./...
//
// Both have a flag for each analyzer: -inboxhttp=false leaves one out, and inboxlint help lists them.
package main

import (
	"golang.org/x/tools/go/analysis/multichecker"

	"github.com/millrace-go/millrace/inboxlint"
)

func main() { multichecker.Main(inboxlint.Analyzers()...) }
