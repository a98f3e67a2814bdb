package cli

import (
	"crypto/tls"

	"github.com/amqpretry/watermill-retry/internal/connection"
)

// Broker is how a command reaches the broker whose library connects by itself. It never belongs
// into any output.
type Broker struct {
	URI       string
	Addresses []string
	TLS       *tls.Config
}

// Broker is what the flags and the environment say.
func (s *Session) Broker() (Broker, error) {
	uri, err := s.URI()
	if err != nil {
		return Broker{}, err
	}
	security, err := s.tls()
	if err != nil {
		return Broker{}, err
	}
	if parsed, _ := connection.ParseURI(uri); parsed.Scheme != schemeTLS {
		security = nil // it is for the management API
	}
	if err := s.checkAddresses(); err != nil {
		return Broker{}, err
	}

	return Broker{URI: uri, Addresses: s.connection.addresses, TLS: security}, nil
}
