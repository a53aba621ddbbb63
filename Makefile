# make build      hook, daemon and CLI into build/
# make demo       two simulated hosts: see a guest's volumes change hands (needs no root)
# make test       everything that needs neither root nor virtual machines
# make sim        2,000 random schedules of simulated hosts, and 500 with commands and claims;
#                 make mutants: that it can fail
# make check      formatting, linters, scripts, known vulnerabilities, modules, man pages
# make bench      what virtlvm costs, beside a bash hook
# make e2e        two real hosts in QEMU (as root): install, start, migrate, upgrade, reboot;
#                 also one suite of it: e2e-smoke, e2e-migrate, e2e-locks, e2e-package, e2e-reboot
# make e2e-full   all that, each way in which a migration can fail, and e2e-conformance
# make packages   .deb and .rpm into build/packages
# make docs       man page and completions that follow from the command line
# make install    as root, or into DESTDIR

SHELL := /bin/bash
.DELETE_ON_ERROR:

GO      ?= $(or $(shell command -v go),$(wildcard /usr/local/go/bin/go),go)
BUILD   ?= build
DESTDIR ?=

sbindir    ?= /usr/sbin
bindir     ?= /usr/bin
sysconfdir ?= /etc
mandir     ?= /usr/share/man
docdir     ?= /usr/share/doc/virtlvm
bashdir    ?= /usr/share/bash-completion/completions
zshdir     ?= /usr/share/zsh/vendor-completions
unitdir    ?= /usr/lib/systemd/system
hooksdir   ?= $(sysconfdir)/libvirt/hooks

VERSION ?= $(or $(patsubst v%,%,$(shell git describe --tags --match 'v*' --dirty 2>/dev/null)),0.1.0-dev)
COMMIT  ?= $(or $(shell git rev-parse --short=12 HEAD 2>/dev/null),unknown)
LDFLAGS := -s -w -X virtlvm/internal/version.Version=$(VERSION) -X virtlvm/internal/version.Commit=$(COMMIT)
GOBUILD := $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)'

# The tools are pinned in tools/go.mod and built from source: nothing is installed.
TOOL := $(GO) tool -modfile=tools/go.mod

.PHONY: help
help:
	@sed -n 's/^# make /make /p' Makefile

.PHONY: build
build: setup
	CGO_ENABLED=0 $(GOBUILD) -o $(BUILD)/hook/qemu ./hooks/qemu
	CGO_ENABLED=0 $(GOBUILD) -o $(BUILD)/virtlvm ./cmd/virtlvm
	CGO_ENABLED=1 $(GOBUILD) -o $(BUILD)/virtlvmd ./cmd/virtlvmd

# What a build or a test needs and cannot bring itself, named before it fails obscurely.
.PHONY: setup
setup:
	@command -v $(GO) >/dev/null || { echo "go is missing: install Go $$(sed -n 's/^go //p' go.mod) or later, or say make GO=/path/to/go" >&2; exit 1; }
	@command -v gcc >/dev/null || { echo "gcc is missing (the daemon's SQLite is C): apt-get install gcc libc6-dev" >&2; exit 1; }
	@$(GO) mod download || { echo "some Go modules are not on this machine and cannot be fetched: see the message above; GOPROXY is $$($(GO) env GOPROXY)" >&2; exit 1; }

# Both parts at once: they mostly wait, for real time.
.PHONY: test
test: setup
	@$(MAKE) --no-print-directory -j2 test-race test-whole

# The longest package comes first. make check does the vetting.
# GORACE: else each program run by a test waits a second at its end. Under the race detector
# the long tests of test/cluster do only a part of what they do; test-whole does all of most.
WHOLE := (Claims)?BothAtOnce|CrashAtEveryLine|Sim(Claims)?|Scenarios(Inside)?|GuestMigrateCrashes|Guest(Attach|Detach)Crashes
WHOLE := $(WHOLE)|Volume(Create|Delete|Erase|Resize|Snapshot|MoveOff)Crashes|VolumeCopy(Crashes|Fails|Cancelled)|VolumeMove(Crashes|Cancelled)
.PHONY: test-race test-whole
test-race: setup
	GORACE="$(GORACE) atexit_sleep_ms=0" $(GO) test -race -vet=off -timeout 20m ./test/cluster ./...
test-whole: setup
	$(GO) test -vet=off -timeout 20m -run '^Test($(WHOLE))$$' ./test/cluster -rapid.seed=1

# SCHEDULES of two hosts and as many of more, side by side; a fourth with claims and with commands
# that go on by themselves. Where one fails it says how to run that schedule again:
# make sim SIMFLAGS=-rapid.seed=N, or -rapid.failfile=FILE.
SCHEDULES ?= 1000
SIM := $(GO) test -count=1 -vet=off -timeout 25m -v ./test/cluster $(SIMFLAGS)
.PHONY: sim
sim: setup
	$(SIM) -run '^Test(Sim|Scenarios(Inside)?)$$' -rapid.checks=$(SCHEDULES)
	$(SIM) -run '^Test(SimClaims|RandomKinds)$$' -rapid.checks=$$((($(SCHEDULES) + 3) / 4))

# Takes some 20 minutes: each rule of the engine that is taken away is a build of its own.
.PHONY: mutants
mutants: setup
	$(GO) test -count=1 -timeout 2h -run '^TestMutants$$' -v ./test/cluster -mutants 200

# BENCHFLAGS=-short measures less, in 20 s. Without xmllint the bash hook reads XML with sed.
.PHONY: bench
bench: setup
	@tools/need.sh xmllint:libxml2-utils || true
	@$(GO) run ./test/bench $(BENCHFLAGS)

.PHONY: conformance
conformance: setup
	$(GO) test -count=1 ./test/san/...

# The lock lets two demos build at the same time.
.PHONY: demo
demo:
	@tools/need.sh gcc:gcc /usr/include/stdlib.h:libc6-dev
	@mkdir -p $(BUILD)
	@flock $(BUILD)/.demo.lock $(MAKE) --no-print-directory build fakes
	@test/demo/demo.sh $(BUILD)

# What stands in for libvirt, QEMU, LVM and sanlock in the demo.
.PHONY: fakes
fakes: setup
	CGO_ENABLED=0 $(GOBUILD) -o $(BUILD)/sanfake ./test/san/sanfake
	CGO_ENABLED=0 $(GOBUILD) -o $(BUILD)/fakevirt ./test/fakevirt/fakevirt

# smoke: the main job, for every change. migrate: live migration, rows: each of its rows.
# package: install, upgrade, remove. reboot: hosts that go down and come back. conformance:
# the list of LVM commands that the fake SAN is held to. times: what it costs.
.PHONY: e2e e2e-full
e2e:
	test/e2e/run.sh smoke migrate commands locks package reboot times
e2e-full:
	test/e2e/run.sh smoke migrate rows locks commands volumes package reboot times conformance

E2E_SUITES := $(addprefix e2e-,smoke migrate rows locks commands volumes package reboot times conformance)
.PHONY: $(E2E_SUITES)
$(E2E_SUITES): e2e-%:
	test/e2e/run.sh $*

.PHONY: check
check: check-format check-lint check-scripts check-modules check-units check-docs check-man check-vulnerabilities
	@echo "check: ok"

.PHONY: check-format
check-format: setup
	@out=$$($(TOOL) gofumpt -l cmd hooks internal packaging sql test) || exit 1; \
	if [ -n "$$out" ]; then printf 'not formatted, run make format:\n%s\n' "$$out" >&2; exit 1; fi

.PHONY: format
format: setup
	$(TOOL) gofumpt -w cmd hooks internal packaging sql test

.PHONY: check-lint
check-lint: setup
	$(TOOL) golangci-lint run

.PHONY: check-scripts
check-scripts:
	@command -v shellcheck >/dev/null || { echo "shellcheck is missing: apt-get install shellcheck" >&2; exit 1; }
	@find . \( -path ./.git -o -path './$(BUILD)' \) -prune -o -type f -size -256k \
		-exec awk 'FNR == 1 && (/^#!.*[\/ ](ba|da)?sh/ || FILENAME ~ /\.(ba)?sh$$/) { print FILENAME } { nextfile }' {} + | \
		xargs -r shellcheck --external-sources --source-path=SCRIPTDIR
	@shellcheck --shell=sh packaging/rpm/post packaging/rpm/preun packaging/rpm/postun

.PHONY: check-modules
check-modules: setup
	$(GO) mod verify
	$(GO) mod tidy -diff

# A unit is only complete with what it runs, so it is checked where it is installed.
.PHONY: check-units
check-units: build
	@if command -v systemd-analyze >/dev/null; then tools/check-units.sh '$(BUILD)/root'; \
	else echo "check-units: skipped: no systemd-analyze on this machine"; fi

.PHONY: docs
docs: setup
	$(GO) run ./internal/gendocs packaging

.PHONY: check-docs
check-docs: setup
	@$(GO) run ./internal/gendocs -check packaging

.PHONY: check-man
check-man:
	@if command -v groff >/dev/null; then \
		for page in packaging/man/*.[58]; do out=$$(groff -man -Tutf8 -ww -z "$$page" 2>&1); \
		[ -z "$$out" ] || { echo "$$out" >&2; exit 1; }; done; \
	else echo "check-man: skipped: no groff on this machine"; fi

.PHONY: check-vulnerabilities
check-vulnerabilities: setup
	@tools/vulncheck.sh $(TOOL) govulncheck

# VERSION may be given; MAINTAINER names who makes the packages, see tools/packages.sh.
.PHONY: packages
packages: build
	@tools/need.sh objdump:binutils gzip:gzip
	@tools/packages.sh '$(BUILD)' '$(VERSION)' '$(GO)'

# The libvirt hook goes where libvirt's AppArmor and SELinux profiles let it run; see
# packaging/install-hook.sh. An existing configuration is kept.
.PHONY: install
install: build install-files

# The parts of install that need no compiler.
.PHONY: install-files
install-files:
	install -D -m 0755 $(BUILD)/virtlvmd $(DESTDIR)$(sbindir)/virtlvmd
	install -D -m 0755 $(BUILD)/virtlvm $(DESTDIR)$(bindir)/virtlvm
	packaging/install-hook.sh $(BUILD)/hook/qemu $(DESTDIR)$(hooksdir)
	install -D -m 0644 -t $(DESTDIR)$(unitdir) systemd/virtlvmd.service systemd/virtlvmd.socket systemd/virtlvmd-ro.socket systemd/virtlvmd-peer.socket
	install -D -m 0644 -t $(DESTDIR)$(unitdir)/libvirtd.service.d systemd/libvirtd.service.d/50-virtlvm.conf
	install -D -m 0644 -t $(DESTDIR)$(unitdir)/virtqemud.service.d systemd/virtqemud.service.d/50-virtlvm.conf
	install -D -m 0644 packaging/sysusers.d/virtlvm.conf $(DESTDIR)/usr/lib/sysusers.d/virtlvm.conf
	install -D -m 0644 packaging/tmpfiles.d/virtlvm.conf $(DESTDIR)/usr/lib/tmpfiles.d/virtlvm.conf
	install -D -m 0644 -t $(DESTDIR)$(mandir)/man8 packaging/man/virtlvm.8 packaging/man/virtlvmd.8
	install -D -m 0644 -t $(DESTDIR)$(mandir)/man5 packaging/man/virtlvm.toml.5
	install -D -m 0644 -t $(DESTDIR)$(docdir) docs/check.md
	install -D -m 0644 packaging/completion/virtlvm.bash $(DESTDIR)$(bashdir)/virtlvm
	install -D -m 0644 packaging/completion/_virtlvm $(DESTDIR)$(zshdir)/_virtlvm
	test -e $(DESTDIR)$(sysconfdir)/virtlvm/virtlvm.toml || \
		install -D -m 0644 packaging/virtlvm.toml $(DESTDIR)$(sysconfdir)/virtlvm/virtlvm.toml
	@[ -n '$(DESTDIR)' ] || sed 's/^/    /' packaging/after-install

.PHONY: clean
clean:
	rm -rf $(BUILD)
