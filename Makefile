# make test   installs what the tests need and runs all of them
# make demo   runs the demo
# make bench  compares with other servers, side by side
# make web    builds the committed web files

GO        ?= go
NPM       ?= npm
GOFUMPT   = $(GO) run mvdan.cc/gofumpt@v0.12.0
STATIC    = $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2
ERRCHECK  = $(GO) run github.com/kisielk/errcheck@v1.30.0
INEFF     = $(GO) run github.com/gordonklaus/ineffassign@v0.2.0
GOFILES   = $(shell git ls-files -co --exclude-standard '*.go')

.PHONY: test demo bench web lint go-lint js-lint go-test js-test e2e fresh deps fuzz long vuln clean

test: deps go-lint go-test js-lint js-test fresh e2e
	@echo "all tests passed"

demo:
	$(GO) run ./cmd/tidewire demo

# Debian packages and npm modules; nothing is downloaded that is there already.
deps: js/node_modules/.installed
	scripts/install-deps

js/node_modules/.installed: js/package-lock.json
	cd js && $(NPM) ci --no-audit --no-fund
	touch $@

lint: go-lint js-lint

go-lint:
	$(GO) vet ./...
	cd bench && $(GO) vet ./...
	cd e2e/centrifuge && $(GO) vet ./...
	GOOS=darwin $(GO) vet ./hub ./internal/load
	GOOS=windows $(GO) build ./...
	@out=$$($(GOFUMPT) -l $(GOFILES)); if [ -n "$$out" ]; then echo "gofumpt would change:"; echo "$$out"; exit 1; fi
	$(STATIC) ./...
	$(ERRCHECK) -ignoretests -exclude .errcheck ./...
	$(INEFF) ./...
	$(GO) mod verify
	$(GO) mod tidy -diff
	scripts/check-text

go-test:
	$(GO) test -race -timeout 15m ./...

js-lint: js/node_modules/.installed
	cd js && $(NPM) run --silent typecheck && $(NPM) run --silent size && $(NPM) run --silent lint:pkg

js-test: js/node_modules/.installed
	cd js && $(NPM) test --silent

# The committed web files are what the sources build to.
web: js/node_modules/.installed
	cd js && $(NPM) run --silent web

fresh: web
	@if [ -n "$$(git status --porcelain -- demo/dist)" ]; then echo "demo/dist is stale: run make web and commit"; git --no-pager diff --stat -- demo/dist; exit 1; fi

# Real Chromium against the real binary.
e2e: deps
	cd js && $(NPM) run --silent e2e

# Each fuzz target for a while; the corpora in testdata run in every go test.
FUZZTIME ?= 30s
fuzz:
	$(GO) test ./hub -run '^$$' -fuzz FuzzFeed -fuzztime $(FUZZTIME)
	$(GO) test ./wire -run '^$$' -fuzz FuzzDecode -fuzztime $(FUZZTIME)
	$(GO) test ./wire -run '^$$' -fuzz FuzzEnvelope -fuzztime $(FUZZTIME)
	$(GO) test ./ackbus -run '^$$' -fuzz FuzzMessage -fuzztime $(FUZZTIME)
	$(GO) test ./postgres -run '^$$' -fuzz FuzzStream -fuzztime $(FUZZTIME)
	$(GO) test ./query -run '^$$' -fuzz FuzzCompile -fuzztime $(FUZZTIME)
	$(GO) test ./row -run '^$$' -fuzz FuzzParseText -fuzztime $(FUZZTIME)
	$(GO) test ./row -run '^$$' -fuzz FuzzParseJSON -fuzztime $(FUZZTIME)
	$(GO) test ./object -run '^$$' -fuzz FuzzNamesAndTexts -fuzztime $(FUZZTIME)
	$(GO) test ./auth -run '^$$' -fuzz FuzzToken -fuzztime $(FUZZTIME)
	$(GO) test ./cmd/tidewire -run '^$$' -fuzz FuzzConfig -fuzztime $(FUZZTIME)

# The tests that take minutes: churn of a million connections, thousands of stalled readers.
long:
	TIDEWIRE_TEST_LONG=1 TIDEWIRE_TEST_CONVERGENCE=20 $(GO) test -timeout 90m ./hub ./object ./live ./e2e .
	cd js && TIDEWIRE_TEST_LONG=1 $(NPM) test --silent && TIDEWIRE_TEST_LONG=1 $(NPM) run --silent e2e -- e2e/tabs

bench:
	cd bench && $(GO) run .

# Needs the vulnerability database from the network.
vuln:
	$(GO) run golang.org/x/vuln/cmd/govulncheck@latest ./...

clean:
	rm -rf js/dist js/node_modules bench/bin tidewire
