package engine

// LastTrace is the W3C traceparent of the last traced call of a message's handler, over all its lives; empty if there
// is none.
func LastTrace(d Delivery) string { return d.State().Trace }

// SetTrace notes the W3C traceparent of the present call. If the call fails, the copy of the message carries it. It
// does nothing under policy "off".
func SetTrace(d Delivery, traceparent string) {
	if IsOff(d) {
		return
	}
	s := *d.State()
	s.Trace = traceparent
	d.Advance(s)
}
