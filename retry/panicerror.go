package retry

import "fmt"

// PanicError is the error of an attempt whose handler panicked.
type PanicError struct {
	// Value is what the handler panicked with.
	Value any
	// Stack is the stack of the panic. It becomes part of the error text only on request, because
	// it can show what a dead letter should not.
	Stack []byte
	// ShowStack puts the stack into the error text.
	ShowStack bool
}

func (e *PanicError) Error() string {
	if e.ShowStack {
		return fmt.Sprintf("handler panicked: %v\n%s", e.Value, e.Stack)
	}

	return fmt.Sprintf("handler panicked: %v", e.Value)
}

// Unwrap gives the error that the handler panicked with, if it was one.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
