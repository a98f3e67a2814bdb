package dlq

import (
	"context"
	"errors"
	"fmt"

	"github.com/amqpretry/watermill-retry/internal/connection"
)

// links are the connections of a scan: the client's, and more where one has not channels enough.
type links struct {
	client *Client
	all    []*connection.Link
	own    []*connection.Connection
	used   int
}

// keepChannels are left for others on the same connection.
const keepChannels = 32

func (l *links) forChannel(ctx context.Context) (*connection.Link, error) {
	link := l.all[len(l.all)-1]
	if most := int(link.Config.ChannelMax); most == 0 || l.used < most-keepChannels {
		l.used++
		return link, nil
	}
	connection := l.client.connect("dead letters")
	l.own = append(l.own, connection)
	link, err := connection.TryLink(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot open another connection for the held messages of a long queue"), err)
	}
	l.all, l.used = append(l.all, link), 1

	return link, nil
}

func (l *links) close() {
	for _, connection := range l.own {
		l.client.disconnect(connection)
	}
	l.own = nil
}
