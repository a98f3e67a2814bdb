package httpapi

// InForce returns the arguments of a queue as the broker applies them together with its policies:
// the lower of two limits; the policy's overflow on a quorum queue and the argument's on a classic
// one; elsewhere the argument.
func (q Queue) InForce() Arguments {
	arguments := Arguments{}
	for key, value := range q.Arguments {
		arguments[key] = value
	}
	arguments["x-queue-type"] = q.Type
	for key, value := range q.Effective {
		argument := "x-" + key
		declared, given := arguments[argument]
		own, _ := declared.(int64)
		n, isNumber := value.(int64)
		switch {
		case isNumber && given && own >= 0:
			arguments[argument] = min(own, n)
		case !given, isNumber, q.Type != "classic" && (key == "overflow" || key == "delayed-retry-type"):
			arguments[argument] = value
		}
	}
	return arguments
}
