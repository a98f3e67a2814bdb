package wire

import "github.com/amqpretry/watermill-retry/retry"

// BrokerReason is the reason for which the broker itself has dead-lettered a message; empty for what is none.
func BrokerReason(death string) retry.Reason {
	switch death {
	case "rejected":
		return retry.ReasonRejected
	case "delivery_limit":
		return retry.ReasonDeliveryLimit
	case "maxlen":
		return retry.ReasonMaxLen
	case "expired":
		return retry.ReasonExpired
	}

	return ""
}
