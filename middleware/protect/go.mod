// What protects a dependency or an effect, with its stores.
module github.com/amqpretry/watermill-retry/middleware/protect

go 1.25

replace github.com/amqpretry/watermill-retry => ../..

require (
	github.com/ThreeDotsLabs/watermill v1.5.1
	github.com/amqpretry/watermill-retry v0.0.0
	github.com/sony/gobreaker v1.0.0
	github.com/stretchr/testify v1.12.1
	golang.org/x/time v0.14.0
	pgregory.net/rapid v1.3.0
)

require (
	github.com/cenkalti/backoff/v5 v5.0.3 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/lithammer/shortuuid/v3 v3.0.7 // indirect
	github.com/oklog/ulid v1.3.1 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)
