// Draws the picture in docs/reference/metrics.md; the standard library is enough. A module of its own, so that it is part of neither the
// library nor the linter's module.
module github.com/amqpretry/watermill-retry/tools/dashboard-picture

go 1.25
