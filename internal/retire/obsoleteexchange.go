package retire

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// Exchange is a rejected exchange to which nothing dead-letters any more: the main queue was
// recreated for another delay, or for another strategy than cycle.
type Exchange struct {
	// Name of the exchange, and Queue the main queue that has dead-lettered to it.
	Name, Queue string
}

// obsolete are the rejected exchanges of main queues that nothing uses.
func (u *uses) obsolete(ctx context.Context, names topology.Names, now []topology.Plan) ([]Exchange, error) {
	owners, delays := map[string]string{}, u.delays()
	for _, plan := range now {
		if plan.Queue == "" {
			continue
		}
		for _, delay := range delays {
			for _, name := range names.RejectedExchanges(plan.Queue, config.FormatDelay(delay)) {
				owners[name] = plan.Queue
			}
		}
	}
	for _, plan := range now {
		for _, x := range plan.Exchanges {
			delete(owners, x.Name)
		}
	}
	var obsolete []Exchange
	for _, x := range u.exchanges {
		queue, known := owners[x.Name]
		if !known || x.Type != amqp.ExchangeHeaders {
			continue
		}
		by, err := u.of(ctx, x.Name)
		if err != nil {
			return nil, err
		}
		if by == "" {
			obsolete = append(obsolete, Exchange{x.Name, queue})
		}
	}
	return obsolete, nil
}

// DeleteExchange deletes an obsolete rejected exchange, unless something has begun to use it: then
// the error is a *[Error]. An exchange that does not exist is no error.
func DeleteExchange(ctx context.Context, client *httpapi.Client, exchange Exchange) error {
	uses, err := usesOf(ctx, client)
	if err != nil {
		return err
	}
	by, err := uses.of(ctx, exchange.Name)
	if err != nil {
		return err
	}
	if by != "" {
		return &Error{Exchange: exchange.Name, InUse: true, Messages: -1, Found: by, Do: "leave it as long " +
			"as that is so: rejected messages would stay in their queue"}
	}
	if err := client.DeleteExchange(ctx, exchange.Name); err != nil && !httpapi.NotFound(err) {
		return err
	}
	return nil
}

// uses are what can use an exchange.
type uses struct {
	client    *httpapi.Client
	queues    []httpapi.Queue
	exchanges []httpapi.Exchange

	policies []httpapi.Policy
	asked    bool // for policies, which takes more permissions
}

func usesOf(ctx context.Context, client *httpapi.Client) (*uses, error) {
	queues, err := client.Queues(ctx)
	if err != nil {
		return nil, err
	}
	exchanges, err := client.Exchanges(ctx)
	return &uses{client: client, queues: queues, exchanges: exchanges}, err
}

// delays are all for which messages can wait: those of the queues, and those that names of
// exchanges have, as the queue may be gone.
func (u *uses) delays() []time.Duration {
	var all []time.Duration
	for _, q := range u.queues {
		if ms, _ := q.Arguments[amqp.QueueMessageTTLArg].(int64); ms > 0 &&
			ms <= int64(config.MaxDelay/time.Millisecond) {
			all = append(all, time.Duration(ms)*time.Millisecond)
		}
	}
	for _, x := range u.exchanges {
		for part := range strings.SplitSeq(x.Name, ".") {
			if delay, err := config.ParseDelay(part); err == nil {
				all = append(all, delay)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// of says what uses an exchange; empty if nothing does.
func (u *uses) of(ctx context.Context, exchange string) (string, error) {
	for _, q := range u.queues {
		if q.Arguments["x-dead-letter-exchange"] == exchange {
			return fmt.Sprintf("the queue %q dead-letters to it", q.Name), nil
		}
	}
	for _, x := range u.exchanges {
		if x.Arguments["alternate-exchange"] == exchange {
			return fmt.Sprintf("it is the alternate exchange of %q", x.Name), nil
		}
	}
	to, err := u.client.RoutesTo(ctx, exchange)
	if err != nil && !httpapi.NotFound(err) {
		return "", err
	}
	if len(to) > 0 {
		return fmt.Sprintf("it is bound to the exchange %q", to[0].Exchange), nil
	}
	from, err := u.client.RoutesFrom(ctx, exchange)
	if err != nil && !httpapi.NotFound(err) {
		return "", err
	}
	for _, b := range from {
		if b.Arguments[header.FirstDeathReason] == nil {
			return fmt.Sprintf("%q is bound to it, by a binding that is not of this library", b.Queue+b.ToExchange), nil
		}
	}
	return u.ofPolicies(ctx, exchange)
}

func (u *uses) ofPolicies(ctx context.Context, exchange string) (string, error) {
	if !u.asked {
		policies, err := u.client.Policies(ctx)
		if err != nil {
			return "", err
		}
		operator, err := u.client.OperatorPolicies(ctx)
		if err != nil {
			return "", err
		}
		u.policies, u.asked = slices.Concat(policies, operator), true
	}
	for _, p := range u.policies {
		if p.Definition["dead-letter-exchange"] == exchange || p.Definition["alternate-exchange"] == exchange {
			return fmt.Sprintf("the policy %q of the broker names it", p.Name), nil
		}
	}
	return "", nil
}
