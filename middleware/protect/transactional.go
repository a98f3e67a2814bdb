package protect

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/middleware/protect/store"
	"github.com/amqpretry/watermill-retry/retry"
)

var (
	// ErrOutputs is the failure of a transactional handler that produced messages without an
	// Outbox. The router publishes them after the transaction is committed; they would be lost if
	// it could not.
	ErrOutputs = errors.New("cannot publish the messages of a transactional handler safely: set " +
		"TransactionalConfig.Outbox")
	// ErrTransactionEnded is the failure of a handler that has committed or rolled back the
	// transaction itself.
	ErrTransactionEnded = errors.New("the handler has ended the transaction, which the middleware does")

	errSlow = errors.New("the database did not answer in time")
)

// TransactionalConfig says where the effects of handlers are.
type TransactionalConfig struct {
	// DB has the data that handlers change, and the table of the Inbox. Required.
	DB *sql.DB
	// Inbox remembers in DB which messages were handled. Required.
	Inbox store.TxInbox
	// Name is put before the names of handlers in the Inbox. Services that share a database, a
	// queue and names of handlers need it.
	Name string
	// KeyFactory gives messages that are the same the same key; one with an empty key is handled in
	// a transaction without a claim. [KeyByUUID] by default.
	KeyFactory wmmiddleware.MessageHasher
	// Postpone is how long a message is postponed while one with the same key is being handled, or
	// while the database does not answer. One second by default.
	Postpone time.Duration
	// Timeout is how long the database may take to begin a transaction and claim the message in it;
	// it includes the wait for a free connection. Five seconds by default.
	Timeout time.Duration
	// TxOptions of the transactions. The database's own by default.
	TxOptions *sql.TxOptions
	// Outbox stores the messages that a handler produced, in its transaction; somebody else
	// publishes them from there. Without it such a handler fails with [ErrOutputs]. The topic that
	// the router would have published them to is message.PublishTopicFromCtx(ctx).
	Outbox func(ctx context.Context, tx *sql.Tx, produced []*message.Message) error
	// OnError is called with each error of DB and the Inbox when a transaction begins, claims a
	// message or commits: a [*StoreError]. Without OnError and Logger an error that lasts, such as
	// a missing table or permission, shows only as messages that are postponed again and again. It
	// must not block.
	OnError func(error)
	// Logger gets the same errors, one in 10 seconds at most.
	Logger watermill.LoggerAdapter
}

// Validate reports all problems in one error, as joined [*config.FieldError]s.
func (c TransactionalConfig) Validate() error {
	p := problems{path: "TransactionalConfig."}
	if c.DB == nil {
		p.add("DB", "missing", "the database of the effects", "nil")
	}
	if c.Inbox == nil {
		p.add("Inbox", "missing", "an inbox in the same database", "nil")
	}
	p.notNilPointer("Inbox", c.Inbox, "an inbox in the same database")
	p.notNegative("Postpone", c.Postpone)
	p.notNegative("Timeout", c.Timeout)

	return errors.Join(p.errs...)
}

// Transactional calls handlers in a transaction, and commits the effects of the handler together
// with the mark that the message was handled. So a message has its effects in that database exactly
// once, however often it is delivered, and whatever dies in between. A message that was handled is
// acknowledged without a call.
//
// Handlers find the transaction with [TxFromContext]. They use it for all that they change, and
// neither commit nor roll it back. An error, a panic and the end of the context roll it back. Where
// the database rolls it back for another transaction (a deadlock, a serialization failure:
// [store.ConflictTeller]), the handler is called again at once, up to 5 times, and the message is
// then postponed: that uses up no attempt. It belongs right inside of the retry middleware. A
// handler that one Transactional wraps twice has one transaction.
type Transactional struct {
	config TransactionalConfig
	reporter
}

// NewTransactional makes a Transactional. It does not ask the database.
func NewTransactional(c TransactionalConfig) (*Transactional, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.KeyFactory == nil {
		c.KeyFactory = KeyByUUID
	}
	c.Postpone = cmp.Or(c.Postpone, defaultPostpone)
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)

	return &Transactional{config: c, reporter: reporter{onError: c.OnError, logger: c.Logger}}, nil
}

type txKey struct{}

// txCall is what the context of a message has while its handler runs.
type txCall struct {
	tx    *sql.Tx
	of    *Transactional
	id    callID
	acked <-chan struct{}
}

// TxFromContext returns the transaction that a [Transactional] has begun for the message whose
// context ctx is; nil if there is none.
func TxFromContext(ctx context.Context) *sql.Tx {
	if call, ok := ctx.Value(txKey{}).(*txCall); ok {
		return call.tx
	}

	return nil
}

// isInside tells whether the delivery has a transaction of t already, as t wraps its handler twice.
// A second one would wait for the claim of the first.
func (t *Transactional) isInside(id callID, msg *message.Message) bool {
	call, ok := msg.Context().Value(txKey{}).(*txCall)

	return ok && call.of == t && call.id == id && call.acked == msg.Acked()
}

// Middleware wraps a handler.
func (t *Transactional) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		key, err := t.config.KeyFactory(msg)
		if err != nil {
			return nil, err
		}
		ctx := msg.Context()
		id := callID{handlerIn(ctx, t.config.Name), key}
		if t.isInside(id, msg) {
			return h(msg)
		}
		for restore, try := engine.Snapshot(msg), 1; ; try++ {
			err, notYet := t.inTransaction(h, msg, id)
			if notYet == nil && t.isConflict(err) {
				restore()
				if try < mostTries {
					if err := pause(ctx, conflictPause<<(try-1)/2+rand.N(conflictPause<<(try-1))); err == nil {
						continue
					}
				}
				notYet = err
			}
			if notYet == nil {
				return nil, err
			}
			try = 0
			if _, ok := postponable(ctx); ok {
				return nil, postponed(ctx, notYet, t.config.Postpone)
			}
			if err := pause(ctx, t.config.Postpone); err != nil {
				return nil, fmt.Errorf("%w: %w", err, notYet)
			}
		}
	}
}

const (
	// mostTries is how often a handler is called whose transaction meets others, before its message
	// is postponed.
	mostTries     = 5
	conflictPause = 10 * time.Millisecond // doubles
)

// isConflict tells of a failure that is the database's way to say that others were faster: it is
// none of the message's. A handler that says by itself what its error means is believed.
func (t *Transactional) isConflict(err error) bool {
	teller, is := t.config.Inbox.(store.ConflictTeller)

	return is && err != nil && teller.IsConflict(err) && !slices.ContainsFunc([]error{
		retry.ErrPermanent, retry.ErrDrop, retry.ErrTransient, retry.ErrRetryAfter, retry.ErrPostponed,
	}, func(mark error) bool { return errors.Is(err, mark) })
}

// inTransaction handles a message in a transaction, if nobody has. Where that cannot be done yet,
// it says why, and the handler was not called.
func (t *Transactional) inTransaction(h message.HandlerFunc, msg *message.Message, id callID) (failure, notYet error) {
	outside := msg.Context()
	ctx, cancel := context.WithCancelCause(outside)
	defer cancel(nil)

	tx, state, err := t.begin(ctx, cancel, id)
	if tx != nil {
		defer func() { _ = tx.Rollback() }() // without effect after a commit
	}
	switch {
	case err != nil:
		// A message that was taken away says nothing about the database.
		if !errors.Is(outside.Err(), context.Canceled) {
			t.reportOften(err)
		}

		return nil, err
	case state == store.Done:
		return nil, nil
	case state != store.New:
		return nil, ErrInFlight
	}

	ctx = context.WithValue(ctx, txKey{}, &txCall{tx, t, id, msg.Acked()})
	msg.SetContext(ctx)
	defer msg.SetContext(outside)

	produced, err := h(msg)
	if err != nil {
		return err, nil
	}
	if err := t.keep(ctx, tx, produced); err != nil {
		return err, nil
	}

	return t.commit(ctx, tx, id), nil
}

// begin begins a transaction and claims the message in it, in time.
func (t *Transactional) begin(ctx context.Context, cancel context.CancelCauseFunc, id callID) (tx *sql.Tx,
	state store.State, err error) {
	// A context that ends with its timeout would end the transaction while the handler runs.
	timer := time.AfterFunc(t.config.Timeout, func() { cancel(errSlow) })
	defer timer.Stop()

	if tx, err = t.config.DB.BeginTx(ctx, t.config.TxOptions); err != nil {
		return nil, 0, id.failed("begin a transaction", becauseOf(ctx, err))
	}
	state = store.New
	if id.key != "" {
		err = safely(func() error {
			if state, err = t.config.Inbox.BeginTx(ctx, tx, id.handler, id.key); err != nil {
				return err
			}

			return checkState(t.config.Inbox, state)
		})
	}
	if err == nil && !timer.Stop() {
		err = errSlow
	}
	if err != nil {
		return tx, 0, id.failed("claim", becauseOf(ctx, err))
	}

	return tx, state, nil
}

// keep stores what the handler produced.
func (t *Transactional) keep(ctx context.Context, tx *sql.Tx, produced []*message.Message) error {
	if len(produced) == 0 {
		return nil
	}
	if t.config.Outbox == nil {
		return fmt.Errorf("%w; it produced %d", ErrOutputs, len(produced))
	}
	if err := t.config.Outbox(ctx, tx, produced); err != nil {
		return fmt.Errorf("cannot store the messages of the handler: %w", err)
	}

	return nil
}

// commit commits the effects and the claim. With an error it is not known whether it did; the retry
// learns that.
func (t *Transactional) commit(ctx context.Context, tx *sql.Tx, id callID) error {
	err := tx.Commit()
	if err == nil {
		return nil
	}
	if errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil {
		return id.failed("commit", ErrTransactionEnded) // by the handler: its message carries that
	}
	err = id.failed("commit", becauseOf(ctx, err))
	if ctx.Err() == nil { // else the handler has used up its time, or the message was taken away
		t.reportOften(err)
	}

	return err
}

// becauseOf adds to an error why its context has ended.
func becauseOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}

	return err
}
