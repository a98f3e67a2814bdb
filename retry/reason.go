package retry

// Reason says why a message failed or died. The list is closed: tools may switch over it.
type Reason string

// The reasons of wire format version 1.
const (
	ReasonExhausted        Reason = "exhausted"          // the last retry failed
	ReasonPermanent        Reason = "permanent"          // the error said that no retry can help
	ReasonExpired          Reason = "expired"            // the message outlived its deadline
	ReasonUndecodable      Reason = "undecodable"        // the marshaler rejected it; no handler saw it
	ReasonPanic            Reason = "panic"              // the handler panicked on the last attempt
	ReasonCrashed          Reason = "crashed"            // its consumers kept dying, as counted by the broker
	ReasonUnpublishable    Reason = "unpublishable"      // the handler succeeded, its outputs could not be published
	ReasonRejected         Reason = "rejected"           // rejected by a consumer that is not ours
	ReasonDeliveryLimit    Reason = "delivery-limit"     // the broker's delivery limit
	ReasonMaxLen           Reason = "maxlen"             // a queue length limit
	ReasonTooLarge         Reason = "too-large"          // its own headers left no room for ours in a frame
	ReasonPostponedTooLong Reason = "postponed-too-long" // postponed beyond the maximum age
)

// Reasons lists all of them, in the order of the wire format.
func Reasons() []Reason {
	return []Reason{
		ReasonExhausted, ReasonPermanent, ReasonExpired, ReasonUndecodable, ReasonPanic, ReasonCrashed,
		ReasonUnpublishable, ReasonRejected, ReasonDeliveryLimit, ReasonMaxLen, ReasonTooLarge, ReasonPostponedTooLong,
	}
}
