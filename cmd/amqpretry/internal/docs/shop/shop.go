// Package shop is the service of which the examples in docs/reference/command-line tell: it bills
// orders, and its payment provider does not always answer.
package shop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/retry"
)

// Topic of the orders, and their main queue.
const Topic = "orders"

// orders in the order in which they are placed. Each one fails in its way.
var orders = []string{
	`{"customer":"ann","total":12.5}`,
	`{"customer":"bob","total":99}`,
	`{"customer":`,
	`{"customer":"cid","total":7}`,
	`{"customer":"dan","total":-3}`,
}

// Placed is how many orders Place places.
var Placed = len(orders)

type order struct {
	Customer string
	Total    float64
}

// Shop that is open.
type Shop struct {
	retrier   *amqpv2.Retrier
	router    *message.Router
	publisher *amqp.Publisher
	stopped   chan error

	placed          int
	providerAnswers atomic.Bool
	died            chan struct{}
}

// Open opens a shop, whose payment provider does not answer yet.
func Open(ctx context.Context, uri string, policies config.Policies) (_ *Shop, err error) {
	s := &Shop{stopped: make(chan error, 1), died: make(chan struct{}, 100)}
	conf := amqp.NewDurableQueueConfig(uri)
	conf.Publish.ConfirmDelivery = true
	s.retrier, err = amqpv2.New(conf, amqpretry.Options{
		Policies: policies, Logger: watermill.NopLogger{},
		Prefetch: 1, // the dead letters lie in the order of the messages
		OnEvent: func(e retry.Event) {
			if e.Kind == retry.EventDeadLettered {
				s.died <- struct{}{}
			}
		},
	})
	if err != nil {
		return nil, err
	}
	subscriber, err := s.retrier.NewSubscriber()
	if err != nil {
		return nil, err
	}
	if s.publisher, err = amqp.NewPublisher(s.retrier.Config(), watermill.NopLogger{}); err != nil {
		return nil, err
	}
	if s.router, err = message.NewRouter(message.RouterConfig{}, watermill.NopLogger{}); err != nil {
		return nil, err
	}
	s.router.AddMiddleware(s.retrier.Middleware)
	s.router.AddConsumerHandler("bill", Topic, subscriber, s.bill)
	go func() { s.stopped <- s.router.Run(ctx) }()
	<-s.router.Running()

	return s, nil
}

// bill fails in three ways: for as long as the provider does not answer, for good, and by a panic.
func (s *Shop) bill(msg *message.Message) error {
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return retry.Permanent(fmt.Errorf("no order: %w", err))
	}
	if o.Total < 0 {
		panic("a negative total")
	}
	if !s.providerAnswers.Load() {
		address := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 443}
		return &net.OpError{Op: "dial", Net: "tcp", Addr: address, Err: syscall.ECONNREFUSED}
	}

	return nil
}

// Place places all orders, with UUIDs that go on where those of the last time have ended.
func (s *Shop) Place() error {
	for _, body := range orders {
		s.placed++
		if err := s.publisher.Publish(Topic, message.NewMessage(fmt.Sprintf("order-%d", s.placed),
			[]byte(body))); err != nil {
			return err
		}
	}

	return nil
}

// Dead waits until so many messages have died since it was called last.
func (s *Shop) Dead(ctx context.Context, n int) error {
	for range n {
		select {
		case <-s.died:
		case <-ctx.Done():
			return ctx.Err()
		}
	}

	return nil
}

// Repair makes the provider answer.
func (s *Shop) Repair() { s.providerAnswers.Store(true) }

// Break makes it stop answering.
func (s *Shop) Break() { s.providerAnswers.Store(false) }

// Close closes the shop.
func (s *Shop) Close() error {
	err := s.router.Close()

	return errors.Join(err, <-s.stopped, s.publisher.Close(), s.retrier.Close())
}
