package httpapi

import "context"

// Permissions are the patterns of names that a user may configure, write and read in the virtual
// host.
type Permissions struct {
	User      string `json:"user"`
	VHost     string `json:"vhost"`
	Configure string `json:"configure"`
	Write     string `json:"write"`
	Read      string `json:"read"`
}

// Permissions are those of a user in the virtual host. The error is a [NotFound] for one who has
// none, and for one whom the broker does not know by itself, such as a user of LDAP.
func (c *Client) Permissions(ctx context.Context, user string) (Permissions, error) {
	p, err := get[Permissions](ctx, c, []string{"permissions", c.vhost, user}, "", "the tag administrator")
	if err == nil && (p.User != user || p.VHost != c.vhost) {
		return Permissions{}, c.elsewhere("the permissions of", p.VHost, p.User)
	}
	return p, err
}
