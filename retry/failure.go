package retry

import "github.com/ThreeDotsLabs/watermill/message"

// Failure is what happened to a message.
//
// A decision function gets it, and returns the error as it is to be taken: Err itself for what the
// policy says, or Err marked with Permanent, Drop, Transient, RetryAfter or Postpone, which
// outranks everything that the policy and the error itself say; or another error, whose text is
// then the one that is kept. nil means Err. It cannot override the bounds: retries, ages and the
// deadline; and a shutdown, which is no failure.
//
//	func(f retry.Failure) error {
//		if f.Class == retry.ClassUndecodable && f.Topic == "orders" {
//			return retry.RetryAfter(time.Minute, f.Err) // a schema may be late
//		}
//		return f.Err
//	}
type Failure struct {
	// Class is what happened: ClassError for whatever a handler returned or panicked with,
	// ClassUndecodable, ClassCrashed or ClassUnpublishable.
	Class Class
	Err   error
	// Message is the message as the handler had it. Where no handler saw it (undecodable, crashed),
	// it is what could be made of the delivery.
	Message *message.Message
	// Payload of the message, also when it could not be decoded.
	Payload []byte
	// Attempt that failed.
	Attempt Attempt
	// Topic that was subscribed to.
	Topic string
}
