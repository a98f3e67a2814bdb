package connection

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
)

// heard keeps what came first from the broker's side, and the error that ended it.
type heard struct {
	net.Conn

	first atomic.Pointer[[]byte] // at most enoughToTell bytes
	end   atomic.Pointer[error]
}

// enoughToTell is how many bytes tell AMQP from other protocols.
const enoughToTell = 8

func (h *heard) Read(b []byte) (int, error) {
	n, err := h.Conn.Read(b)
	if first := h.begin(); n > 0 && len(first) < enoughToTell {
		first = append(bytes.Clone(first), b[:min(n, enoughToTell-len(first))]...)
		h.first.Store(&first)
	}
	if err != nil {
		h.end.Store(&err)
	}

	return n, err
}

func (h *heard) begin() []byte {
	if first := h.first.Load(); first != nil {
		return *first
	}

	return nil
}

// explainDial makes readable what amqp091-go has said. When the other side ends the connection at
// once, that can be that a write has failed, or only that the connection is not open: with TLS 1.3
// a broker judges the client's certificate when the handshake is over for the client.
//
// Upstream: an error of Dial does not say what the other side is; no issue known, measured;
// amqp091-go 1.16; TestWhatIsNotAMQP; remove when it does.
func explainDial(err error, h *heard, overTLS bool) error {
	if h == nil {
		return err
	}
	if first := h.begin(); len(first) > 0 {
		if what := foreign(first); what != "" {
			return fmt.Errorf("%s (%w)", what, err)
		}

		return err
	}
	if end := h.end.Load(); end != nil && !errors.Is(*end, io.EOF) && !errors.Is(*end, net.ErrClosed) {
		err = *end
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}

	question := "is it the port of the management API (15672), or one for TLS, which needs amqps://?"
	if overTLS {
		question = "does the broker accept the client's certificate?"
	}

	return fmt.Errorf("the server closed the connection without sending anything: %w (%s is it a proxy without "+
		"a broker behind it?)", err, question)
}

const askForPort = "take the host and the AMQP port of a broker (5672, or 5671 with amqps://; 15672 is its " +
	"management API)"

// foreign tells what speaks there, by its first bytes, where an AMQP 0-9-1 broker would have sent a
// method frame; empty if it is one.
func foreign(first []byte) string {
	switch {
	case bytes.HasPrefix(first, []byte("HTTP")):
		return "an HTTP server answers there, not an AMQP broker; " + askForPort
	case bytes.HasPrefix(first, []byte{0x15, 0x03}): // a TLS alert
		return "the port speaks TLS; use amqps://"
	case bytes.HasPrefix(first, []byte("AMQP")):
		return "the broker does not speak AMQP 0-9-1; " + askForPort + " that speaks it"
	case first[0] != 1:
		return "what answers there is not an AMQP broker; " + askForPort
	default:
		return ""
	}
}

// explainTLS tells what speaks at a port that does not speak TLS.
func explainTLS(err error) error {
	var record tls.RecordHeaderError
	if !errors.As(err, &record) {
		return err
	}
	what := "the port does not speak TLS; " + askForPort
	switch first := record.RecordHeader[:]; {
	case bytes.HasPrefix(first, []byte("AMQP")):
		what = "the port speaks AMQP without TLS; use amqp://, or the port for amqps:// (5671)"
	case bytes.HasPrefix(first, []byte("HTTP")):
		what = foreign(first)
	}

	return fmt.Errorf("%s (%w)", what, err)
}

// whatIsMissing tells of a connection that did not open in time.
func whatIsMissing(h *heard) string {
	if h == nil || len(h.begin()) == 0 {
		return "the server sent nothing; check that the address is the AMQP port of a broker"
	}

	return "the broker did not open the connection in time"
}
