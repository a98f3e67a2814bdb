package consumer

import "time"

// refuse stops the subscription, whose messages would be lost.
func (s *subscription) refuse(err error) {
	if s.refused.Swap(true) {
		return
	}
	s.logger.Error("Stopped the subscription, as a middleware would lose its messages", err, nil)
	s.close(time.Now().Add(s.consumer.settings.CloseTimeout))
}
