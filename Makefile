# Thin targets; "make help" lists them. Tools come with the module (go tool), so
# nothing has to be installed but Go, and gcc for the race detector.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
N       ?= 100
RUN     ?= .

AGENT   := cmd/forkd/guest/forkd-agent
GUESTS  := riscv64 amd64
# End-to-end tests that "make test-kvm" runs on the engine kvm: a few, of what engines have most to do with.
E2E_KVM := ^(TestForkContract|TestFilesComeBackAsTheyWere|TestRollback|TestPackNeedsNothingOfWhereItWasMade|TestForkOfASandbox|TestManyBranches)$$
LDFLAGS := -s -w -X main.version=$(VERSION)

export CGO_ENABLED ?= 0

.DEFAULT_GOAL := help
.PHONY: help build quickstart bench bench-qemu bench-e2b test test-kvm test-kvm-short test-kvm-e2e test-go-std lockstep race check generate clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/forkd with the guest agents inside
	for arch in $(GUESTS); do GOOS=linux GOARCH=$$arch $(GO) build -trimpath -buildvcs=false -ldflags '-s -w' -o $(AGENT).$$arch ./cmd/forkd-agent || exit; done
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/forkd ./cmd/forkd

quickstart: build ## from nothing to N running children (N=100)
	bin/forkd quickstart -n $(N) --yes

bench: build ## measure this host
	bin/forkd bench -n $(N)

bench-qemu: build ## compare with QEMU on this host (needs qemu-system-misc)
	$(GO) run ./bench/qemu -json bench/qemu/result.json

bench-e2b: build ## measure what users of E2B's npm package feel (needs node and npm)
	$(GO) run ./bench/e2b -forkd bin/forkd -home '$(E2B_HOME)'

test: build ## run the whole test suite
	$(GO) test -timeout 30m ./...

test-kvm: ## run the tests of the engine kvm and of jails, in an emulated host (needs qemu-system-x86)
	FORKD_TEST_EMULATE=1 FORKD_TEST_KVM=1 $(GO) test -timeout 30m -v ./internal/hosttest ./internal/jail ./internal/engine/kvm ./internal/e2e/kvm
	FORKD_TEST_EMULATE=1 FORKD_TEST_KVM=1 $(GO) test -timeout 30m -v -run '$(E2E_KVM)' ./internal/e2e

test-kvm-short: ## run those of them that say most in a few minutes
	FORKD_TEST_KVM=1 $(GO) test -timeout 30m -run '^(TestLinux|TestEngines|TestKVM)$$' ./internal/engine/kvm ./internal/jail ./internal/e2e/kvm

test-kvm-e2e: ## run end-to-end tests on the engine kvm, all or RUN=pattern (hours, without KVM)
	@failed=; for names in $$($(GO) test -list '$(RUN)' ./internal/e2e | grep ^Test | xargs -n 6 | tr ' ' '|'); do \
		FORKD_TEST_KVM=1 $(GO) test -timeout 2h -v -run "^($$names)$$" ./internal/e2e || failed="$$failed|$$names"; \
	done; test -z "$$failed" || { echo "failed: $$failed"; exit 1; }

test-go-std: build ## run many of Go's own tests in a guest, on both executors
	FORKD_TEST_GO_STD=1 $(GO) test -timeout 3h -run TestGoStandardLibrary -v ./internal/e2e

lockstep: ## compare interpreter and translator on a whole boot and Python work (FORKD_HOME has an image)
	FORKD_LOCKSTEP=. $(GO) test -timeout 3h -run TestLockstep -v ./internal/engine/soft

race: build ## run the test suite under the race detector
	CGO_ENABLED=1 $(GO) test -race -short ./...

check: ## formatting, vet, generated files
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "run gofmt -w on these"; exit 1; }
	$(GO) vet ./...
	$(GO) test -run TestGeneratedFilesAreFresh ./api

generate: ## regenerate what comes from api/openapi.yaml
	$(GO) generate ./...

clean: ## remove what was built
	rm -rf bin $(AGENT).*
