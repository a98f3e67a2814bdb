package rabbitmq

// The kinds of objects in errors.
const (
	KindQueue    = "queue"
	KindExchange = "exchange"
)

// What the broker can refuse, beside the declaration of a topology.
const (
	UseConsume = "consume"
	UsePublish = "publish"
	UseDeclare = "declare it" // by a publisher
	UseLook    = "read its depth"
)
