// Package browser drives the web console with a real Chromium, over a real broker and a service
// that fails. It is a module of its own, so that nobody else compiles a driver for browsers.
package browser
