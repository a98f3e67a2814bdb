package retry

// Class is the kind of a failure, as far as deciding needs to know it.
type Class string

// The classes of failures.
const (
	ClassError         Class = "error"         // the handler returned an error
	ClassPanic         Class = "panic"         // the handler panicked
	ClassPermanent     Class = "permanent"     // no retry can help
	ClassDrop          Class = "drop"          // the handler has no use for the message
	ClassPostponed     Class = "postponed"     // not a failure: the handler wants the message later
	ClassExpired       Class = "expired"       // the message has outlived its deadline; no handler was called
	ClassShutdown      Class = "shutdown"      // not a failure: the message was taken away from the handler
	ClassCrashed       Class = "crashed"       // the broker counted too many deliveries without an answer
	ClassUndecodable   Class = "undecodable"   // the marshaler rejected it; no handler was called
	ClassUnpublishable Class = "unpublishable" // the handler succeeded, its outputs could not be published
	ClassRejected      Class = "rejected"      // a consumer outside of this module rejected it: see RejectedError
)
