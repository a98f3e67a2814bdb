package middleware

import "errors"

// errGoexit is the error of an attempt whose handler ended its goroutine, as testing.T.FailNow does.
var errGoexit = errors.New("the handler called runtime.Goexit")
