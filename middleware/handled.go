package middleware

import "context"

// MarkHandled notes on the message whose context ctx is that its handler has succeeded, under a mark that is the caller's own. A copy of
// the message has it if a middleware outside makes a failure of the success after all: [HandledMark] tells it in the retry. It is for
// middlewares that remember what was handled, and does nothing for messages that do not come from a plug.
func MarkHandled(ctx context.Context, mark string) {
	d := deliveryFrom(ctx)
	if d == nil || off(d) {
		return
	}
	s := *d.State()
	s.Handled = mark
	d.Advance(s)
}

// HandledMark returns the mark of the last call of [MarkHandled] for the message whose context ctx is; empty if there was none.
func HandledMark(ctx context.Context) string {
	d := deliveryFrom(ctx)
	if d == nil || off(d) {
		return ""
	}

	return d.State().Handled
}
