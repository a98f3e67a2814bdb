package dlq

import (
	"context"
	"time"
)

// defaultHold is how long messages are held that are to stay in the queue, which RabbitMQ takes
// back after its consumer_timeout.
const defaultHold = 20 * time.Minute

// mostGrowth is after how many losses for want of room a scan does not try any more whether
// messages have become smaller.
const mostGrowth = 4

// isOld tells whether what is held must be given back before the broker takes it back. What was
// only passed again is no progress.
func (s *scan) isOld() bool {
	return s.passed > s.skip && s.holds() && time.Since(s.began) > s.queue.client.longestHold
}

// lost tells that there was no room for a message: from now on there is less on its way.
func (s *scan) lost(size int) {
	s.losses++
	s.atOnce = max(1, s.queue.client.room/size)
}

// renew gives back all that is held, in its order, and begins anew at the head of the queue. What
// was passed before is passed again, and nobody is told of it. unseen are those at its end that are
// not to be passed. What has come since is not passed on.
func (s *scan) renew(ctx context.Context, unseen int) error {
	if s.idle != nil {
		if err := s.idle(ctx); err != nil {
			return err
		}
	}
	kept := 0
	for _, b := range s.blocks {
		kept += b.kept
	}
	taken := s.passed - kept
	left := s.total - taken
	if err := s.giveBack(true); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}

	total, err := s.ready()
	if err != nil {
		return err
	}
	s.gone += taken
	s.skip, s.passed = kept-unseen, 0
	if s.holder != nil { // it knows them
		s.skip, s.gone = 0, s.gone+kept
	}
	s.short += max(0, left-total)
	s.total = min(total, left)
	s.began = time.Now()

	return nil
}
