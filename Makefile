# Girassol. `make help` lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO       ?= go
BIN      := bin
# A number of inputs, not a time: a worker still busy when time is up fails the target.
FUZZTIME ?= 5000x
# Their long runs of virtual time crash Go 1.26 under the race detector at times
# (golang/go#78156), so they are run without it.
LONG_BUBBLES := ./signals/director ./coordinator/app/simulate
# Generators and linter live in modules of their own: go.mod stays the product's.
BUF      := $(GO) tool -modfile=../internal/tools/go.mod buf
LINT     := $(GO) tool -modfile=internal/tools/lint/go.mod golangci-lint
SUPPLY   := $(GO) tool -modfile=internal/tools/supply/go.mod
CRDGEN   := $(GO) tool -modfile=internal/tools/controllergen/go.mod controller-gen
# Tests that need dependencies which the product must not have.
MODULES  := charts/chartstest internal/tools/grafana internal/tools/keda internal/tools/images internal/tools/kernelgen examples/convergence
DEMO     ?=
# go-nvml's bindings name what NVIDIA has deprecated, hundreds of lines of it.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  %-16s %s\n", $$1, $$2}'

.PHONY: check-go
check-go:
	@command -v $(GO) >/dev/null || { echo "make: Go is missing: install Go 1.26 or newer (https://go.dev/dl)"; exit 1; }

.PHONY: build
build: check-go ## Build coordinator, agent, agent-nvml (reads NVIDIA GPUs where there is a C compiler), operator, girassol and quickstart into bin/
	@mkdir -p $(BIN)
	$(GO) build -o $(BIN)/ ./coordinator/cmd/coordinator ./coordinator/cmd/girassol ./siteagent/cmd/agent ./siteagent/cmd/agent-nvml ./operator/cmd/operator ./examples/quickstart

.PHONY: images
images: check-go ## Build OCI images of the static binaries into bin/images, without a container daemon
	cd internal/tools/images && $(GO) run . -out ../../../$(BIN)/images

.PHONY: demo
demo: build ## Train one model over three sites on this machine (about 2 minutes); flags: make demo DEMO="--sites 4"
	$(BIN)/quickstart $(DEMO)

.PHONY: test
test: check-go services ## Format, vet, tests with the race detector, short fuzzing; with `make testenv` before, on a real Kubernetes control plane too
	@bad=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$bad" ] || { echo "not gofmt-clean:"; echo "$$bad"; exit 1; }
	$(GO) vet ./...
	$(GO) test -race -timeout 25m $$($(GO) list ./... | grep -v /examples/kubernetes/churn)
	$(GO) test $(LONG_BUBBLES)
	$(GO) test -run Namespaces ./internal/wire/wireguard
	$(MAKE) --no-print-directory fuzz

.PHONY: testenv
testenv: check-go ## Build etcd, the Kubernetes control plane and KWOK for tests into .cache/testenv (about 15 minutes once)
	operator/testenv/tools/build.sh

.PHONY: test-kubernetes
test-kubernetes: testenv services ## A day of a federation on a real control plane with real processes (minutes)
	$(GO) test -timeout 30m -v ./examples/kubernetes/churn

.PHONY: test-modules
test-modules: check-go ## Tests against Helm, KEDA, Grafana's schema and OCI images, each in a module of its own
	@for m in $(MODULES); do echo "== $$m"; (cd $$m && $(GO) vet ./... && $(GO) test -count=1 -timeout 20m ./...); done

.PHONY: python
python: ## Build the Python SDK's wheel into siteagent/python/dist (setuptools comes from PyPI)
	rm -rf siteagent/python/dist siteagent/python/build
	python3 -m pip wheel -q --no-deps -w siteagent/python/dist siteagent/python

# Debian's interpreter, because Debian's PyTorch belongs to it.
PYTHON ?= $(firstword $(wildcard /usr/bin/python3) python3)
.PHONY: test-python
test-python: check-go ## Tests of the Python SDK; PYTHON=... chooses the interpreter (PyTorch and numpy are used where it has them)
	@if [ -n "$${CI:-}" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! $(PYTHON) -c 'import pip, torch' 2>/dev/null; then \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-torch python3-pip; } </dev/null >/dev/null \
	    || { echo "make: python3-torch and python3-pip could not be installed, and CI runs all tests"; exit 1; }; \
	fi
	cd siteagent/python && $(PYTHON) -m unittest

FLWR ?= >=1.21
.PHONY: test-flower
test-flower: check-go ## Tests of the Flower adapter with the real flwr from PyPI (FLWR===1.21.0: that version); test-python runs them with a stand-in
	@d=$$(mktemp -d) && trap 'rm -rf "$$d"' EXIT; \
	if ! $(PYTHON) -m pip install -q --disable-pip-version-check --root-user-action=ignore --target "$$d" 'flwr$(FLWR)'; then \
	  echo "make: flwr cannot be had from PyPI here: its adapter is tested with the stand-in only (make test-python)"; exit 0; \
	fi; \
	cd siteagent/python && PYTHONPATH="$$d" $(PYTHON) -m unittest tests.test_flower_project tests.test_flower tests.test_flower_federation

.PHONY: services
services: # Some tests start a real Redis or Prometheus, or make network namespaces; Debian's packages are enough. Without one they are skipped and say so.
	@for s in redis-server prometheus ip; do \
	  command -v $$s >/dev/null && continue; \
	  package=$$s; [ $$s != ip ] || package=iproute2; \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$package; } </dev/null >/dev/null \
	      || [ -z "$${CI:-}" ] || { echo "make: $$package could not be installed, and CI runs all tests"; exit 1; }; \
	  fi; \
	  command -v $$s >/dev/null || echo "make: no $$s: tests with a real one are skipped (install the package $$package)"; \
	done

.PHONY: fuzz
fuzz: check-go ## Run every fuzz target for FUZZTIME (5000x: so many inputs; or a time such as 1m)
	@for f in $$(git ls-files '*_test.go' | xargs grep -l '^func Fuzz'); do \
	  for t in $$(grep -oE '^func Fuzz[A-Za-z0-9_]*' $$f | sed 's/func //'); do \
	    echo "fuzz $$(dirname $$f) $$t"; \
	    $(GO) test -run '^$$' -fuzz "^$$t\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x ./$$(dirname $$f); \
	  done; done

.PHONY: bench
bench: check-go ## Benchmarks, bytes on the wire, memory per site, mixed speeds, transfers (half an hour, 6 GB in TMPDIR)
	$(GO) test -run '^$$' -bench . -benchtime 1x ./internal/... ./coordinator/... ./siteagent/...
	$(GO) run ./examples/bench wire
	$(GO) run ./examples/bench memory
	$(GO) run ./examples/bench mixed
	$(GO) run ./examples/bench transfer --json bench/results.json

CHAOS ?=
.PHONY: chaos
chaos: check-go services ## Break a federation of real processes for 3 minutes (CHAOS="--for 1h --seed 7"); as root in network namespaces, else on the loopback
	$(GO) run ./examples/chaos $(CHAOS)

.PHONY: protocol
protocol: check-go ## Simulate 100,000 schedules of faults and prove that it finds planted ones (1 to 2 minutes)
	$(GO) test -count=1 -timeout 20m -v -run Protocol ./examples/protocol

.PHONY: bench-peer
bench-peer: check-go ## Flower's FedAvg beside our mean, 8 x 64 MB and 8 x 400 MB (needs PyPI; 4 GB in TMPDIR, 8 GB of memory)
	$(GO) run ./examples/bench/peer

CONVERGENCE ?=
.PHONY: bench-convergence
bench-convergence: check-go ## Loss and accuracy against bytes for every strategy (three hours on two cores; CONVERGENCE=-short: a minute)
	cd examples/convergence && $(GO) run . $(CONVERGENCE)

.PHONY: generate
generate: check-go ## Regenerate the Go code of api/**/*.proto, kernels, deep copies, CRDs and the operator's role (the first run builds buf: minutes)
	cd api && $(BUF) lint && $(BUF) generate
	@$(MAKE) --no-print-directory generate-kernels generate-kubernetes

.PHONY: generate-kernels
generate-kernels: check-go ## Regenerate the assembly of internal/kernel only (seconds)
	$(GO) generate ./internal/kernel

.PHONY: generate-kubernetes
generate-kubernetes: check-go ## Regenerate deep copies, CRDs and the operator's role only (seconds)
	$(CRDGEN) object paths=./api/federation/v1alpha1
	$(CRDGEN) crd paths=./api/federation/v1alpha1 output:crd:dir=charts/girassol/files/crds
	$(CRDGEN) rbac:roleName=girassol-operator paths=./operator/... output:rbac:dir=charts/girassol/files/rbac

# What is generated from the Go types must be what they say; CI checks it.
.PHONY: fresh
fresh: generate-kubernetes generate-kernels
	@git diff --exit-code --stat -- 'api/**/zz_generated*.go' charts/girassol/files internal/kernel || { echo "generated files were stale; commit what make generate-kubernetes generate-kernels made"; exit 1; }

.PHONY: lint
lint: check-go generate ## golangci-lint, and generated code that is fresh (the first run builds the linter: minutes)
	@git diff --exit-code --stat -- 'api/*.pb.go' 'api/**/zz_generated*.go' charts/girassol/files internal/kernel || { echo "generated files were stale; commit what make generate made"; exit 1; }
	$(LINT) run ./...

VULNDB ?=
.PHONY: vuln
vuln: check-go ## Known vulnerabilities in the code that the product calls (VULNDB=file:///...: a copy of the database)
	@code=0; out=$$($(SUPPLY) govulncheck $(if $(VULNDB),-db $(VULNDB)) ./... 2>&1) || code=$$?; \
	if [ $$code = 1 ] && grep -q 'fetching vulnerabilities' <<<"$$out"; then \
	  echo "make: the Go vulnerability database cannot be reached here: no check was made"; exit 0; \
	fi; \
	printf '%s\n' "$$out"; exit $$code

.PHONY: sbom
sbom: check-go ## Bills of materials of the programs, CycloneDX JSON, into bin/sbom
	@mkdir -p $(BIN)/sbom
	@for p in coordinator/cmd/coordinator coordinator/cmd/girassol siteagent/cmd/agent siteagent/cmd/agent-nvml operator/cmd/operator; do \
	  $(SUPPLY) cyclonedx-gomod app -json -licenses -std -main $$p -output $(BIN)/sbom/$$(basename $$p).cdx.json . 2>/dev/null \
	    || { echo "make: no bill of materials for $$p: run the command by hand to see why"; exit 1; }; \
	  echo "$(BIN)/sbom/$$(basename $$p).cdx.json"; \
	done

.PHONY: clean
clean: ## Remove build outputs and the demo's folder
	rm -rf $(BIN) girassol-demo
