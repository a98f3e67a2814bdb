# Everything here needs Go and bash only: scripts/broker finds or installs a RabbitMQ, and ends it again.
# scripts/postgres and scripts/mysql do the same for databases.
# With AMQP_URI set, tests and benchmarks use that broker instead: with objects of their own, which they remove.

SHELL := bash
GO    ?= go
# go.work makes one of all modules but tools, which go.work knows nothing of.
TOOL  := GOWORK=off $(GO) tool -modfile=$(CURDIR)/tools/go.mod

# Tests wait for delays and brokers more than they compute, so more of them than cores may run at a time.
TESTFLAGS ?= -timeout=20m -p=2 -parallel=16
# A broker that starts keeps more than a core busy for seconds: of many at a time each takes several times as long.
OWNFLAGS  ?= -short -timeout=60m -p=3 -parallel=2
# The longest come first, and the others beside them. make test leaves out what kills processes and what measures.
PACKAGES  ?= all
BEFORE    := ./tests ./amqpretry/dlq ./amqpretry/... ./cmd/amqpretry/... ./config/... ./internal/... ./middleware/... \
	./middleware/metrics ./middleware/protect ./middleware/protect/store ./middleware/tracing ./retry ./tests/arrows
OWNERS     = $(if $(filter all,$(PACKAGES)),./tests $$(grep -rl --include=*_test.go '_OwnBroker.t ' amqpretry cmd internal tests | xargs -n 1 dirname | sort -u | grep -v 'tests/\(b\|c[hl]\)' | sed 's|^|./|'),$(PACKAGES))
EVERY     := ./tests ./tests/crashes ./tests/console ./tests/tools $(BEFORE)
TESTED     = $(if $(filter all,$(PACKAGES)),$(EVERY),$(PACKAGES))
# Tests whose names end with this start brokers of their own, each for seconds: make test-brokers.
OWN       := _OwnBroker$$
# Tests that take more than two seconds of processor time each, or half a minute: in CI, and with make test LONG=
LONG      ?= ^(TestP7_TwoVersionsSideBySide|TestP8_Journey|TestAlternatives|TestExact_Priority|TestExact_LadderDeleted|TestDelayPublish_Names|TestGroups_OneClosesUnderLoad|TestStrategy_Close|TestStrategy_CloseWhileFailing|TestStrategy_Neighbours|TestProcessorCommand|TestProcessorCommand_Killed|TestProcessor_GracefulClose|TestWatermillSuitePubSub|TestExactDelays_JitterSpreadsABurst|TestExact_DeliveryDeleted|TestDelayPublish_LadderDeleted|TestDelayPublish_DeliveryDeleted|TestHostile_Counts|TestHealthyBesideABrokenQueue|TestBrowsingKeepsEverythingInOrder|TestPoorNetworks|TestFailureWhileTheScanWaits|TestBrowsesWhileDeadLettersComeKeepTheOrder|TestOddQueues|TestRunThatTakesLong|TestParseBombs|TestPublisher_LargeCall|TestLargeMessages|TestListsAreBounded|TestWaits|TestWaitsWhileSomebodyReads|TestWaitsGivenBackTooEarly|TestWaitsBehindThoseThatAreDue|TestWaitsHeldForLong|TestRateOfWaits|TestWaitsThatSeemToBeDue|TestRunOfWaits)$$
SHORT      = -vet=off -short $(TESTFLAGS) -skip '$(OWN)$(if $(LONG),|$(LONG))' $(if $(filter all,$(PACKAGES)),$(BEFORE),$(PACKAGES))
# amqpv3: the tests go over watermill-amqp v3, else over v2
TAGS      ?=
# make matrix: the brokers to test against, separated by blanks; empty: a private one
URIS ?=

# Where the tables of the proofs go, beside the terminal.
REPORT ?=
SEED   ?=
PROOF   = SEED="$(SEED)" REPORT="$(if $(REPORT),$(abspath $(REPORT)))"

# make lint and make vet look at each with its own go.mod, as its users have it.
MODULES ?= . $(filter-out tools,$(patsubst %/go.mod,%,$(wildcard */go.mod */*/go.mod)))

.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-others timings sizes proof mutants ledger test-exact-promises test-brokers test-v3 test-exact test-strategies test-race matrix soak chaos cluster console waiting browser shutdown crashes stores inbox bench costs tools foreign fuzz examples record lint prose vet fmt

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1 | /p' $(MAKEFILE_LIST) | awk -F' [|] ' '{ printf "make %-16s %s\n", $$1, $$2 }'

# AMQP_URI may be set for a service, so only a URI in this command's line is asked for the demo.
demo: ## messages that succeed, are retried, and end in the dead-letter queue; on another broker: make demo URI=amqp://…
	@$(if $(filter command,$(origin URI)),AMQP_URI="$(URI)" scripts/broker run,scripts/broker run --private) $(GO) run ./examples/quickstart

test: ## what to run before a commit: the tests of library and command, in their short form
	scripts/broker run $(GO) test -tags "$(TAGS)" $(SHORT)

test-others: ## what other people's tools read of our files, the judge of the chaos proof, and this project's own tools
	cd tools && export GOWORK=off && $(GO) vet ./timings ./mutants && $(GO) test -vet=off -count=1 ./timings ./mutants
	$(GO) test -vet=off -count=1 ./tests/interop
	$(GO) test -vet=off -run 'TestJudge|TestReader|TestFates|TestTopics' ./tests/chaos/...

test-brokers: ## tests that kill, freeze or fill brokers, each one of its own, and that give users their permissions
	scripts/broker run --managed $(GO) test -tags "$(TAGS)" -vet=off $(OWNFLAGS) -run '$(OWN)' $(OWNERS)

# Only what differs: the configs of both versions are translated by files of their own, all else is shared.
test-v3: ## Watermill's suite and what depends on the version, over watermill-amqp v3
	scripts/broker run $(GO) test -tags amqpv3 -vet=off -short $(TESTFLAGS) -run '$(VERSIONS)' -skip '$(OWN)' ./tests ./amqpretry ./amqpretry/amqpv3

# Tests about retry queues, which exact delays have none of, and about topology that is not provisioned.
TIERS := TestProtect_Warning|TestP8_TopologyAssume|TestP8_Conflicts|TestOutcomes|TestRetrytestIsFaithful|TestSubscribeRefuses
RUN ?= .
test-exact: ## Watermill's suite and the promise tests with exact delays, in their short form; RUN=regexp for some
	STRATEGY=ladder scripts/broker run $(GO) test -tags "$(TAGS)" -vet=off -count=1 -short $(TESTFLAGS) -run '$(RUN)' -skip '$(OWN)|$(TIERS)' ./tests ./tests/crashes

test-exact-promises: # for CI
	@$(MAKE) --no-print-directory test-exact RUN='$(PROMISES)'

# make test-strategies STRATEGIES=native: with RabbitMQ 4.3 or later
STRATEGIES ?= cycle redelivery
PROMISES   := ^Test(P[1-79]_|P10_|Lossless|NoHotLoop|Healthy|Close|Hostile|Replayed)
VERSIONS   := ^Test(Watermill|P6_|P8_|Lossless|Stock|Both|V3|Retrier|Subscriber|Config|New|Addresses|TLS|Credentials|Groups)
# Tests about what only copies have: the error and the history of each attempt, a name for a message without one, a
# place among those that are held, main queues that are classic or keep their arguments when the delays change. So are
# the tests of P8: no queue that exists can adopt a strategy as it is.
COPIES     := TestP9_HistoryIsBounded|TestP9_ErrorTexts|TestP9_DeadLetterExplainsItself|TestP4_MovedBackByHandIsAReplay|TestReplayedMessagesDieAgain|TestP4_ForgedHeadersAreFresh|TestP10_Deadline|TestP6_BareMessage|TestLosslessConsumerCutWhileHeld|TestCloseTwiceAndConcurrently|TestP4_AnotherPolicyContinuesTheCount
# Tests in which a lost connection or a close is no attempt, an attempt knows the error before it, versions of a service
# have main queues with the same arguments, and, for redelivery, a retry waits or needs room for headers.
RETURNS                     := TestNoHotLoopCrashing|TestP4_CutConnectionDoesNotCount|TestP4_ShutdownDoesNotCount|TestP4_AttemptFromContext|TestP7_TwoVersions|TestP4_RestartWhileWaiting
COPIES_of_cycle := $(COPIES)
COPIES_of_native            := $(COPIES)|$(RETURNS)
COPIES_of_redelivery        := $(COPIES)|$(RETURNS)|TestP6_ExpirationEndsNeitherWaitNorDeadLetter|TestHostile_UnreadableHeaders
test-strategies: ## the promise tests with broker-driven strategies, in their short form
	scripts/broker run bash -ec '$(foreach strategy,$(STRATEGIES),STRATEGY=$(strategy) $(GO) test -tags "$(TAGS)" -vet=off -count=1 -short $(TESTFLAGS) -run "$(PROMISES)" -skip "$(subst $$,\$$,$(OWN))|$(COPIES_of_$(strategy))" ./tests;)'

# With the slowest tests at the end.
timed = set -o pipefail; tools=$$(mktemp -d); trap 'rm -rf "$$tools"' EXIT; GOWORK=off $(GO) build -C tools -o "$$tools/timings" ./timings && \
	scripts/broker run $(GO) test -json -debug-actiongraph="$$tools/graph" -tags "$(TAGS)" $(1) | \
	"$$tools/timings" -actions "$$tools/graph"

test-race: ## make test with the race detector, and the ten slowest tests at the end
	@$(call timed,-race $(SHORT)) -first 10

test-long: ## the tests that make test leaves out, but for those with brokers of their own
	scripts/broker run $(GO) test -tags "$(TAGS)" -vet=off $(TESTFLAGS) -skip '$(OWN)' -run '$(LONG)' ./tests ./amqpretry/dlq ./amqpretry/dlqweb ./config/policyfile ./internal/httpapi
	scripts/broker run $(GO) test -tags "$(TAGS)" -vet=off $(TESTFLAGS) -skip '$(OWN)' ./tests/crashes ./tests/console ./tests/tools

timings: ## make test again, with the 40 slowest tests, and the packages with their times and what linking them costs
	@$(call timed,-count=1 $(SHORT)) -report /dev/stdout -budgets tests/budgets


sizes: ## lines, files and exported names of each package, with the budgets that tests/arrows/sizes.txt sets
	@$(GO) test -count=1 -run TestSizes -v ./tests/arrows

matrix: ## every combination of broker, queue type and consumer: make matrix URIS="amqp://… amqp://…" TAGS=amqpv3 REPORT=report.md
	$(PROOF) scripts/matrix $(GO) test -tags "$(TAGS)" -count=1 $(TESTFLAGS) -timeout=30m -skip '$(OWN)' $(TESTED) -- $(URIS)

# Two versions of a service with different policies side by side, for SOAK in each of several combinations at a time.
SOAK ?= 3m
soak: ## a change of policies under load, for minutes: make soak SOAK=10m
	SOAK=$(SOAK) scripts/broker run $(GO) test -count=1 -v -timeout=1h -parallel=8 -run TestP7_TwoVersions ./tests

# Everything fails, at random, while processes of a service work: nothing may be lost. The same SEED gives the same faults and messages.
MESSAGES ?= 10000
FOR      ?= 3m
# Only topics and faults whose names match, as TOPICS='^exact' FAULTS=SIGKILL; and the setting of the broker that says
# after how long a queue that dead-letters at least once tries again (5s; RabbitMQ's own default is 3m).
TOPICS   ?=
FAULTS   ?=
CONFIRM_TIMEOUT ?=
chaos: ## processes, connections and a broker fail: make chaos MESSAGES=20000 FOR=10m SEED=1 REPORT=report.md
	$(PROOF) MESSAGES="$(MESSAGES)" FOR="$(FOR)" TOPICS="$(TOPICS)" FAULTS="$(FAULTS)" \
		CONFIRM_TIMEOUT="$(CONFIRM_TIMEOUT)" CLOCK_STEPS=yes \
		scripts/broker run --own $(GO) test -count=1 -v -timeout=2h -run 'TestChaos_' ./tests/chaos

CLOSES ?= 3000
shutdown: ## services closed at random moments: make shutdown CLOSES=3000 SEED=1 REPORT=report.md
	$(PROOF) CLOSES="$(CLOSES)" \
		scripts/broker run $(GO) test -count=1 -v -timeout=1h -run TestShutdownAtRandomMoments ./tests

# Everything fails while messages are published; the broker is killed KILLS times.
ledger: ## what publishers are told, against what is stored: make ledger MESSAGES=100000 KILLS=10 SEED=1 REPORT=report.md
	$(PROOF) MESSAGES="$(if $(filter command line,$(origin MESSAGES)),$(MESSAGES),100000)" KILLS="$(if $(filter command line,$(origin KILLS)),$(KILLS),10)" \
		scripts/broker run $(GO) test -count=1 -v -timeout=1h -run TestPublisher_Ledger ./tests

crashes: ## services that die, are closed and lose their connections, in every combination: make crashes REPORT=report.md
	$(PROOF) CRASHES=all scripts/broker run $(GO) test -count=1 -v -timeout=1h ./tests/crashes

# The proof of the console. The same tests run in short with make test.
VIEWS ?= 10000
KILLS ?= 50
LETTERS ?= 1000000
console: ## the console looked at, killed, and stopped half-way and undone: make console VIEWS=10000 KILLS=50 REPORT=report.md
	$(PROOF) VIEWS="$(VIEWS)" KILLS="$(KILLS)" LETTERS="$(LETTERS)" MESSAGES="$(if $(filter command line,$(origin MESSAGES)),$(MESSAGES),100000)" \
		scripts/broker run $(GO) test -count=1 -v -timeout=1h -parallel=1 ./tests/console

waiting: ## messages that wait: 10,000 that killed processes cancel, send and postpone; a long list: make waiting WAITING=1000000
	$(PROOF) WAITING="$(if $(WAITING),$(WAITING),100000)" scripts/broker run $(GO) test -count=1 -v -timeout=1h -parallel=1 ./tests/waiting

# scripts/chromium and scripts/nginx find or fetch what it needs; npm fetches axe-core.
browser: ## the console in a real Chromium: make browser PICTURES=docs/img makes the pictures of the docs
	PICTURES="$(if $(PICTURES),$(abspath $(PICTURES)))" \
		scripts/broker run $(GO) test -count=1 -timeout=20m ./tests/browser/...

# CLUSTER="leaders quorum/minority exact": only these scenarios
CLUSTER ?=
cluster: ## nodes of a cluster are killed, stopped, frozen and cut off under load: make cluster SEED=42 REPORT=report.md
	$(PROOF) CLUSTER="$(CLUSTER)" \
		scripts/broker run --own $(GO) test -tags cluster -count=1 -v -timeout=1h ./tests/cluster

# scripts/X finds or fetches the server, and ends it again. ROWS for a clean-up.
STORES ?= postgres mysql redis
stores: ## the stores of package protect on private servers: make stores STORES=postgres REPORT=report.md
	set -e; for store in $(STORES); do $(PROOF) scripts/$$store run $(GO) test -count=1 -timeout=20m \
		./middleware/protect/store/$$([ $$store = redis ] && echo redis || echo sql)store; done

# KILLS and MESSAGES for each form; without them a short one.
inbox: ## processes with effects in PostgreSQL are killed, and the effects counted: make inbox KILLS=200 MESSAGES=20000 SEED=1 REPORT=report.md
	$(PROOF) KILLS="$(if $(filter command line,$(origin KILLS)),$(KILLS))" MESSAGES="$(if $(filter command line,$(origin MESSAGES)),$(MESSAGES))" \
		scripts/broker run scripts/postgres run $(GO) test -count=1 -v -timeout=1h ./tests/inbox

# Each comparison ROUNDS times, on numbers of messages and lengths of time multiplied by SCALE.
BENCH  ?= .
ROUNDS ?= 5
SCALE  ?= 1
bench: ## the retrier measured against what one would do without it: make bench BENCH=Healthy ROUNDS=3 SCALE=0.2 REPORT=report.md
	$(PROOF) SCALE=$(SCALE) scripts/broker run $(GO) test -tags "$(TAGS)" -run '^$$' -bench '$(BENCH)' -benchtime=$(ROUNDS)x -v -timeout=2h ./tests/bench
	$(PROOF) SCALE=$(SCALE) scripts/broker run $(GO) test -tags "$(TAGS)" -run '^$$' -bench '$(BENCH)' -benchtime=$(ROUNDS)x -v -timeout=2h ./tests/bench/peers
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem ./internal/consumer

costs: ## allocations and writes that each message costs, and whether these have become more
	scripts/broker run $(GO) test -tags "$(TAGS)" -vet=off -run '^$$' -bench Costs -benchtime=1x -v ./tests/bench

# Commands are killed KILLS times each, and dead-letter queues of both types are browsed BROWSES times each.
KILLS ?= 100
BROWSES ?= 10000
tools: ## the dead-letter tools killed at random moments, and thousands of browses: make tools KILLS=100 BROWSES=10000 SEED=1 REPORT=report.md
	$(PROOF) KILLS="$(KILLS)" BROWSES="$(BROWSES)" scripts/broker run $(GO) test -count=1 -v -timeout=2h -parallel=1 ./tests/tools

# Installs pika and amqplib into a temporary folder. MESSAGES for each language, 2000 without it.
foreign: ## the processor with consumers in Python and JavaScript, while its processes are killed: make foreign SEED=1 REPORT=report.md
	$(PROOF) MESSAGES="$(if $(filter command line,$(origin MESSAGES)),$(MESSAGES))" \
		scripts/broker run $(GO) test -tags foreign -count=1 -v -timeout=30m ./tests/foreign

FUZZ    ?= 3m
FUZZERS := config/policyfile:FuzzParse config:FuzzDelay config:FuzzGlob internal/wire:FuzzRead internal/wire:FuzzLife internal/wire:FuzzHistory \
	internal/consumer:FuzzDelivery internal/codec:FuzzReadable internal/codec:FuzzFrame internal/codec:FuzzDeadLetter internal/connection:FuzzURI \
	amqpretry/dlq:FuzzRecord amqpretry/dlq:FuzzFilter
MUTANTS ?= .
mutants: ## faults put into the code on purpose, which tests must find: make mutants MUTANTS=regexp REPORT=report.md
	tools=$$(mktemp -d); trap 'rm -rf "$$tools"' EXIT; GOWORK=off $(GO) build -C tools -o "$$tools/mutants" ./mutants && \
		TESTFLAGS=-short scripts/broker run "$$tools/mutants" -match '$(MUTANTS)' $(if $(REPORT),-report "$(abspath $(REPORT))") tests/mutants/*.txt

# LEGS: scripts/proof --list tells them
LEGS ?=
proof: ## the proofs that take long, each with a bound and a report: make proof LEGS="matrix crashes soak"
	$(PROOF) scripts/proof $(LEGS)

fuzz: ## hostile input made at random, FUZZ for each of twelve targets: make fuzz FUZZ=10m
	GO="$(GO)" scripts/fuzz $(FUZZ) $(FUZZERS)

# make test runs all Example functions.
SHOWN = $$(grep -rl --include=*_test.go watermill-retry/examples/demo amqpretry config middleware retry | xargs -n 1 dirname | sort -u | sed 's|^|./|')
examples: ## the programs of examples, and the Example functions that use a broker, with their output checked
	scripts/broker run bash -ec '$(GO) test -vet=off -count=1 $(TESTFLAGS) -skip "$(subst $$,\$$,$(OWN))" ./examples ./examples/graceful-shutdown; \
		$(GO) test -vet=off -count=1 $(TESTFLAGS) -run "^Example" "$$@"' -- $(SHOWN)

record: ## the command lines of the docs run anew, their outputs written, their picture drawn
	scripts/record

lint: ## linters and formatting (the first time it builds the linter: some minutes)
	set -e; for module in $(MODULES); do (cd $$module && $(TOOL) golangci-lint run --allow-serial-runners); done

PAGES ?= $(filter-out CHANGELOG.md,$(wildcard *.md)) $(wildcard docs/*.md docs/*/*.md docs/*/*/*.md)
WORST ?= 20
prose: ## how hard README and docs are to read, and their worst sentences: make prose PAGES=docs/reference/policies.md WORST=50
	cd tools && export GOWORK=off && $(GO) vet ./prose && $(GO) test ./prose && $(GO) run ./prose -worst $(WORST) $(addprefix ../,$(PAGES))

# make lint does the same for what needs a tag.
vet: ## go vet, and no files that patches and merges have left behind
	@if left=$$(git ls-files | grep -E '\.(orig|rej)$$'); then echo "cannot vet: tracked leftovers of a patch or merge; git rm them:" $$left; exit 1; fi
	set -e; for module in $(MODULES); do GOWORK=off $(GO) vet -C $$module ./...; done

fmt: ## format the code
	$(TOOL) golangci-lint fmt
