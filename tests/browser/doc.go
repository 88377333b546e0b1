// Package browser drives the dashboard in a headless Chromium, as an operator would, and
// takes the pictures of the documentation:
//
//	eval "$(tests/services.sh)"
//	cd tests/browser && go test ./...
//	go test -run TestPictures -update ./...    # writes docs/images
//	go test -run TestANight -update ./...      # writes its half of docs/a-night.md
//
// It is a module of its own, so that nobody who uses Millrace has to download chromedp.
package browser
