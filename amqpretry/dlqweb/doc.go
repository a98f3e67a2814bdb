// Package dlqweb is a web console for dead letters, with an HTTP API: an [http.Handler] for a
// service's own mux.
//
//	browser, curl ──► Console ──► package dlq ──► orders.dlq
//	                  │  every request: who is it, may he, is it from this site
//	                  │  every action:  audit first
//	                  └► folder: what each run was to do, how far it came, its undo file
//
// Why it is safe:
//   - It moves no message itself: all of it is done by package dlq, so looking changes nothing, and
//     a message leaves a queue only when its copy is confirmed.
//   - A GET changes nothing. A POST from another site is refused.
//   - Without Config.Authorize a visitor sees numbers, reasons and times; no error text, header or
//     body.
//   - A run belongs to the console and not to the browser. It is in the folder before it begins, so
//     that a console that was killed says what is known of it. Nothing is lost then: see package
//     dlq.
package dlqweb
