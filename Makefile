# make demo   see it work          make test   see the tests pass
# make help   everything else

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build

GO      ?= go
KERNELS ?= 6.1,6.12,7
KERNEL  ?= 6.12
export CGO_ENABLED = 0
# bpf2go's compiler looks for <asm/types.h> here; a name of Debian's multiarch layout.
export C_INCLUDE_PATH ?= /usr/include/$(shell uname -m)-linux-gnu

.PHONY: help build install deb test-deb generate check-generate lint test test-host test-wine test-vm soak mutants fuzz vm-shell demo bench-vm bench-startup bench-jails bench-jobs bench-engine clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# cmd/thenforce/ldflags: no huge pages for thenforce's own heap. On a host that gives them to everybody each is zeroed
# when it is first touched, and they were half of what starting a command costs (docs/performance.md).
build: ## build/thenforce, one static binary
	$(GO) build -trimpath -ldflags "$$(cat cmd/thenforce/ldflags)" -o build/thenforce ./cmd/thenforce

PREFIX  ?= /usr/local
DESTDIR ?=
ZSHDIR  ?= $(PREFIX)/share/zsh/site-functions

install: build ## install into PREFIX (/usr/local), below DESTDIR: program, manual, completions, unit, examples
	rm -rf build/man && mkdir -p build/completion
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 0) $(GO) run -tags man ./cmd/thenforce man build/man
	for shell in bash zsh fish; do build/thenforce completion $$shell >build/completion/$$shell; done
	sed 's|@BINDIR@|$(PREFIX)/bin|' packaging/thenforce.service >build/thenforce.service
	for file in thenforce.json thenforce-runc; do sed 's|/usr/bin/thenforce|$(PREFIX)/bin/thenforce|' contrib/containers/$$file >build/$$file; done
	install -Dm755 build/thenforce $(DESTDIR)$(PREFIX)/bin/thenforce
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/man/man1 build/man/*.1
	install -Dm644 build/completion/bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/thenforce
	install -Dm644 build/completion/zsh $(DESTDIR)$(ZSHDIR)/_thenforce
	install -Dm644 build/completion/fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/thenforce.fish
	install -Dm644 build/thenforce.service $(DESTDIR)$(PREFIX)/lib/systemd/system/thenforce.service
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/thenforce/containers build/thenforce.json contrib/containers/hook.yaml
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/thenforce/containers/policies contrib/containers/policies/*.yaml
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/thenforce/agents contrib/agents/*.yaml
	install -Dm755 contrib/ci/thenforce-ci $(DESTDIR)$(PREFIX)/bin/thenforce-ci
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/thenforce/ci contrib/ci/action.yml contrib/ci/gitlab-ci.yml contrib/ci/sudoers
	install -Dm755 -t $(DESTDIR)$(PREFIX)/share/thenforce/containers build/thenforce-runc

deb: ## build/thenforce_VERSION_amd64.deb
	@scripts/need dpkg
	scripts/deb

test-deb: deb ## install, use and remove the package on a guest with systemd
	$(GO) run ./test/vm setup --kernels $(KERNEL) --full
	$(GO) run ./test/vm shell --kernel $(KERNEL) --profile systemd --add $$(ls -t build/*.deb | head -1):/root/thenforce.deb --script scripts/test-deb

demo: build ## watch a jail hold: on this host where its kernel can, else in a guest
	@demo/start

test: test-host test-wine test-vm test-deb ## all tests: on this host, under wine, then in guests on every kernel

test-host: ## tests that need no special kernel
	@command -v node >/dev/null || scripts/need nodejs
	@scripts/need util-linux procps
	$(GO) test ./...

test-wine: ## the tests as programs of Windows, under wine
	@scripts/need debootstrap debian-archive-keyring
	$(GO) run ./test/wine

test-vm: ## tests tagged vm, in guests (KERNELS=6.1,6.12,7)
	$(GO) run ./test/vm setup --kernels $(KERNELS) --full
	$(GO) run ./test/vm test -j 2 --timeout 20m --kernels $(KERNELS) --profile default,nolsm,lockdown
	$(GO) run ./test/vm test -j 2 --timeout 20m --kernels 6.12 --profile full,full-nolsm,systemd,two
	$(GO) run ./test/vm test -j 2 --timeout 20m --kernels 6.1,7 --profile full --run 'TestProfileFull(Container|Podman|Hook)' ./cmd/thenforce

soak: ## tests in guests with nothing left out: hours, or a piece (KERNELS PROFILES PACKAGES RUN); added to build/soak.txt
	$(GO) run ./test/vm setup --kernels $(KERNELS) --full
	@mkdir -p build
	{ date -u +%FT%TZ; git describe --always --dirty; set -x; time \
	  $(GO) run ./test/vm test --soak --timeout 90m --kernels $(KERNELS) $(addprefix --profile ,$(PROFILES)) \
	    $(if $(RUN),--run '$(RUN)') $(PACKAGES); } 2>&1 | tee -a build/soak.txt

mutants: ## each check of a remembered verdict taken out in turn (MUTANTS): its test has to fail, in a guest
	@scripts/need clang-19 llvm-19 libbpf-dev linux-libc-dev
	@scripts/mutants $(MUTANTS)

fuzz: ## every fuzz target for FUZZTIME (20s) each
	@scripts/fuzz $(or $(FUZZTIME),20s)

vm-shell: ## a shell in a guest with thenforce on its PATH (KERNEL=6.12 SCRIPT=file)
	@$(GO) run ./test/vm setup --kernels $(KERNEL)
	@$(GO) run ./test/vm shell --kernel $(KERNEL) $(if $(SCRIPT),--script "$(SCRIPT)")

# Without cgo: a jail that grants only the binary has no dynamic linker.
bench-vm bench-startup bench-jails bench-jobs: export CGO_ENABLED = 0

bench-vm: ## count the instructions of opens and more, in jails, outside and under Landlock (KERNELS)
	$(GO) build -o build/bench ./test/bench
	$(GO) run ./test/vm setup --kernels $(KERNELS)
	for k in $$(tr , ' ' <<< '$(KERNELS)'); do \
	  $(GO) run ./test/vm shell --kernel $$k --icount --timeout 30m --add build/bench:/usr/bin/bench \
	    -c 'bench ops' > build/bench-$$k.txt; done
	build/bench report -svg build/cost-by-depth.svg $$(printf 'build/bench-%s.txt ' $$(tr , ' ' <<< '$(KERNELS)'))

bench-startup: ## count the instructions that starting a command by run costs (KERNEL=6.12)
	$(GO) build -o build/bench ./test/bench
	$(GO) run ./test/vm setup --kernels $(KERNEL)
	$(GO) run ./test/vm shell --kernel $(KERNEL) --icount --add build/bench:/usr/bin/bench -c 'bench startup'

bench-jails: ## count the instructions of making, changing, listing and ending jails among 1,000, and their memory (KERNEL=6.12)
	$(GO) build -o build/bench ./test/bench
	$(GO) run ./test/vm setup --kernels $(KERNEL)
	$(GO) run ./test/vm shell --kernel $(KERNEL) --icount --timeout 30m --add build/bench:/usr/bin/bench -c 'bench jails' >build/jails-$(KERNEL).txt
	cat build/jails-$(KERNEL).txt

# The build cache comes from here: to fill one takes a guest minutes. Both have the same Go, see docs/testing.md.
bench-jobs: ## count the instructions of whole jobs: no jail, jail, Landlock, bubblewrap (KERNEL=6.12)
	$(GO) build -o build/bench ./test/bench
	cd test/bench/testdata/module && GOTOOLCHAIN=local GOCACHE=$(CURDIR)/build/jobs-cache \
	  $(GO) build -trimpath -buildvcs=false -o $(CURDIR)/build/jobs-module .
	$(GO) run ./test/vm setup --kernels $(KERNEL) --full
	$(GO) run ./test/vm shell --kernel $(KERNEL) --full --icount --timeout 60m --add build/bench:/usr/bin/bench \
	  --add build/jobs-cache:/w/gocache --add test/bench/testdata/module:/w/module -c 'bench jobs' >build/jobs-$(KERNEL).txt
	cat build/jobs-$(KERNEL).txt

bench-engine: ## time checks and guarded opens against other libraries, and the engine over JSON-RPC: medians of 10
	@mkdir -p build
	$(GO) test -run '^$$' -bench 'Containment|CheckAll' -benchmem -count 10 ./pkg/fallback >build/bench-engine.txt
	$(GO) test -run '^$$' -bench Engine -benchmem -count 10 ./cmd/thenforce >>build/bench-engine.txt
	$(GO) tool benchstat build/bench-engine.txt

generate: ## compile bpf/ and regenerate the Go side of its types
	@scripts/need clang-19 llvm-19 libbpf-dev linux-libc-dev
	$(GO) generate ./...

check-generate: generate ## fail where the committed output of generate is not what the sources give
	@git diff --exit-code -- pkg/loader/enforcer_bpfel.go pkg/loader/enforcer_bpfel.o pkg/loader/enforcer_digest.go || \
	  { echo 'the generated files differ from bpf/: commit what make generate made' >&2; exit 1; }

lint: ## formatting, vet on every system, staticcheck, shellcheck
	@scripts/need shellcheck
	@test -z "$$(gofmt -l .)" || { gofmt -l . >&2; echo 'gofmt would change these files' >&2; exit 1; }
	$(GO) vet ./... && $(GO) vet -tags vm ./...
	GOOS=windows $(GO) vet ./... && GOOS=darwin $(GO) vet ./...
	$(GO) tool staticcheck ./... && $(GO) tool staticcheck -tags vm ./...
	shellcheck scripts/* demo/* .ci/run packaging/p* contrib/containers/thenforce-runc contrib/ci/thenforce-ci
	$(GO) mod tidy -diff

clean: ## remove build/
	rm -rf build
