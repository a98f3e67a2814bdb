package doctor

import (
	"regexp"
	"slices"
	"strings"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/shell"
)

// lacking lists those that the patterns do not match. A pattern that Go cannot read, as Erlang's
// are more, matches.
func lacking(wanted []inspect.Permission, granted httpapi.Permissions) []inspect.Permission {
	var missing []inspect.Permission
	for _, p := range wanted {
		pattern := map[string]string{inspect.Configure: granted.Configure,
			inspect.Write: granted.Write, inspect.Read: granted.Read}[p.Operation]
		expression, err := regexp.Compile(pattern)
		if pattern == "" || err == nil && !expression.MatchString(p.Name) { // an empty pattern matches nothing
			missing = append(missing, p)
		}
	}
	return missing
}

func lookPermissions(f Facts) []Finding {
	wanted := inspect.Needs(f.Topics)
	missing := slices.Clone(f.Refused.Value)
	if f.Granted.Known {
		for _, p := range lacking(wanted, f.Granted.Value) {
			// What the broker has said counts. It says nothing of reading an exchange when it has
			// refused the queue that was to be bound.
			asked := f.Refused.Known && (p.Operation != inspect.Read || p.Kind != rabbitmq.KindExchange)
			if !asked && !slices.ContainsFunc(missing, p.Same) {
				missing = append(missing, p)
			}
		}
	}
	user, fix := "user "+quoted(f.User), f.grant(wanted)
	var found []Finding
	for _, p := range missing {
		rule, ofLadder := "permissions.declare", f.LadderOf(p.Name) != ""
		switch {
		case p.Always && p.Operation == inspect.Write:
			rule = "permissions.write"
		case p.Always:
			rule = "permissions.read"
		case ofLadder:
			p.For = "declaring the ladder"
		}
		finding := f.says(rule, "operation", p.Operation, "kind", p.Kind, "name", p.Name, "for", p.For)
		finding.Object, finding.Fix = user, fix
		if ofLadder {
			finding.of, finding.part = user, p.Kind+" "+quoted(p.Name)
			finding.Found = f.says("permissions.ladder", "operation", p.Operation).Found
		}
		found = append(found, finding)
	}
	if len(found) == 0 && !f.Refused.Known && !f.Granted.Known {
		return f.cannotSee(blind{f.Refused.Why: nil}, "permissions")
	}
	return found
}

// pattern matches a name; of a ladder, all that it has: there are more than fifty.
func (f Facts) pattern(name string) string {
	if l := f.LadderOf(name); l != "" {
		return regexp.QuoteMeta(l+".") + ".*"
	}
	return regexp.QuoteMeta(name)
}

// grant gives the user what is wanted, beside what is granted.
func (f Facts) grant(wanted []inspect.Permission) string {
	pattern := func(operation, granted string) string {
		var names []string
		for _, p := range wanted {
			if name := f.pattern(p.Name); p.Operation == operation && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		all := "^(" + strings.Join(names, "|") + ")$"
		switch {
		case len(names) == 0:
			return shell.Quote(granted)
		case granted != "" && granted != "^$":
			all = "(" + granted + ")|" + all
		}
		return shell.Quote(all)
	}
	g := f.Granted.Value
	command := f.Ctl("set_permissions", shell.Quote(f.User), pattern(inspect.Configure, g.Configure),
		pattern(inspect.Write, g.Write), pattern(inspect.Read, g.Read))
	if !f.Granted.Known {
		return f.says("permissions.grant").Fix + "\n" + command
	}
	return command
}
