package httpapi

import "context"

// Policy is a policy of the broker, or an operator policy.
type Policy struct {
	VHost      string    `json:"vhost"`
	Name       string    `json:"name"`
	Pattern    string    `json:"pattern"`
	ApplyTo    string    `json:"apply-to"`
	Priority   int       `json:"priority"`
	Definition Arguments `json:"definition"`
}

// Policies lists the policies of the virtual host.
func (c *Client) Policies(ctx context.Context) ([]Policy, error) { return c.policies(ctx, "policies") }

// OperatorPolicies lists the operator policies of the virtual host.
func (c *Client) OperatorPolicies(ctx context.Context) ([]Policy, error) {
	return c.policies(ctx, "operator-policies")
}

func (c *Client) policies(ctx context.Context, kind string) ([]Policy, error) {
	policies, err := list[Policy](ctx, c, []string{kind, c.vhost}, "", "")
	if err != nil {
		return nil, err
	}
	for _, p := range policies {
		if p.VHost != c.vhost {
			return nil, c.elsewhere("policy", p.VHost, p.Name)
		}
	}
	return policies, nil
}
