# SPDX-License-Identifier: Apache-2.0
#
# Builds, tests, checks and runs penstock. "make help" lists the targets; each sets up what it needs (deploy/deps).
#
# One static archive per folder, so that who may call whom can be checked on symbols. Sources are found by wildcard: a new file
# needs no line here. Sanitizer builds are this same file run with another O (build/asan, build/ubsan, build/tsan).
# What needs rules of its own lives in fragments (netcore/*/*.mk, tests/*/*.mk, kernel/*.mk), included at the end.

MAKEFLAGS += --no-builtin-rules
# As many jobs as processors unless told otherwise; a make started by this one shares the jobs of its parent.
ifeq ($(MAKELEVEL),0)
ifeq ($(filter -j%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc)
endif
endif
.SUFFIXES:
.DELETE_ON_ERROR:
SHELL := /bin/bash
.DEFAULT_GOAL := build

O       ?= build
D       := build/deps
CC      := $(if $(filter default undefined,$(origin CC)),gcc,$(CC))
CLANG   ?= clang
PREFIX  ?= /usr/local
DESTDIR ?=
JOBS    ?= $(shell nproc)
# Not asked of the compiler: on a bare machine it is not there yet when this line is read.
MULTIARCH := $(shell uname -m)-linux-gnu
VERSION   ?= $(shell cat VERSION 2>/dev/null || echo 0.1.0)

# ---- flags ---------------------------------------------------------------------------------------------------------

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla -Werror
OPT  ?= -O2 -g
# Kernel headers first: liburing's own header wants newer ones than an old release has.
SYSINC := -isystem $(D)/liburing/usr/include -isystem $(D)/kernel-headers/usr/include \
          -isystem $(D)/kernel-headers/usr/include/$(MULTIARCH) -isystem $(D)/llhttp/usr/include \
          -isystem $(D)/isal/usr/include -isystem /usr/include/libnl3
CPPFLAGS_ALL := -I. -Inetcore -I$(O)/gen $(SYSINC) -D_GNU_SOURCE -DPENSTOCK_VERSION='"$(VERSION)"' $(CPPFLAGS)
CFLAGS_ALL   := -std=gnu11 $(OPT) $(WARN) -fno-omit-frame-pointer -fstack-protector-strong $(SAN) $(CFLAGS)
LDFLAGS_ALL  := $(SAN) $(LDFLAGS) -Wl,--as-needed
LDLIBS_ALL   := $(D)/liburing/usr/lib/$(MULTIARCH)/liburing.a $(D)/llhttp/usr/lib/$(MULTIARCH)/libllhttp.a \
                $(D)/isal/usr/lib/libisal.a -lssl -lcrypto -lzstd -lyaml -lsqlite3 -lexpat \
                -lnl-route-3 -lnl-genl-3 -lnl-3 -lxdp -lbpf -lmicrohttpd -lcurl -lpthread -lm

# ---- archives: one per folder ----------------------------------------------------------------------------------------

FOLDERS := server conf storage netcore/nic netcore/rx netcore/ring netcore/tcp netcore/base
lib_of   = $(O)/lib$(notdir $(1)).a
srcs_of  = $(filter-out server/main.c,$(filter-out %.bpf.c,$(wildcard $(1)/*.c)))
objs_of  = $(patsubst %.c,$(O)/%.o,$(call srcs_of,$(1)))
LIBS    := $(foreach f,$(FOLDERS),$(if $(call srcs_of,$(f)),$(call lib_of,$(f))))
# netcore folders use one another below rx, so the archives are searched as one group.
LINK     = -Wl,--start-group $(LIBS) -Wl,--end-group

define archive_rule
$(call lib_of,$(1)): $(call objs_of,$(1))
	@mkdir -p $$(@D)
	@rm -f $$@
	$$(Q)$(AR) rcsD $$@ $$(filter %.o,$$^)
endef
$(foreach f,$(FOLDERS),$(eval $(call archive_rule,$(f))))

AR ?= ar
Q  := $(if $(V),,@)
say = $(if $(V),,@printf '  %-5s %s\n' $(1) $(2))

# ---- programs --------------------------------------------------------------------------------------------------------

PENSTOCK := $(if $(wildcard server/main.c),$(O)/penstock)

.PHONY: build
build: $(LIBS) $(PENSTOCK) $(if $(PENSTOCK),$(O)/docs.ok)

# Generated documentation is part of the tree, for readers; a build with a stale one fails.
GENERATED := conf/REFERENCE.md docs/METRICS.md
$(O)/docs.ok: $(O)/penstock $(GENERATED) man/penstock.1 tests/lib/check-docs
	$(Q)tests/lib/check-docs $< && touch $@

.PHONY: generate
generate: $(O)/penstock
	@$< reference conf >conf/REFERENCE.md
	@$< reference metrics >docs/METRICS.md

$(O)/penstock: $(O)/server/main.o $(LIBS) | $(D)/stamp-build
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $< $(LINK) $(LDLIBS_ALL)

# The flags are a prerequisite: changing them rebuilds, so no stale object survives a change of options.
$(O)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(subst ','\'',$(CPPFLAGS_ALL) $(CFLAGS_ALL) $(LDFLAGS_ALL))' | cmp -s - $@ || \
	 echo '$(CC) $(subst ','\'',$(CPPFLAGS_ALL) $(CFLAGS_ALL) $(LDFLAGS_ALL))' >$@

$(O)/%.o: %.c $(O)/flags | $(D)/stamp-build
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -MMD -MP -c -o $@ $<

# ---- dependencies ------------------------------------------------------------------------------------------------------

DEPS_FILES := deploy/deps/setup deploy/deps/versions
.PHONY: deps
deps:
	@deploy/deps/setup build test

$(D)/stamp-%: $(DEPS_FILES)
	@deploy/deps/setup $*

# ---- tests -------------------------------------------------------------------------------------------------------------
# A lane is a folder of tests/. Lanes of C programs are found by test_*.c, lanes of scripts by run-*; tests/README.md says which
# kind to choose. Each lane closes with "N passed, N failed, N skipped"; "make test" adds them up.

LANES_C  := unit contract tcp sim
LANES_SH := e2e root
TEST_LANES := $(LANES_C) fuzz $(LANES_SH)
RESULTS := $(O)/results
LANE     = tests/lib/lane
# What scripts start. A sanitizer build points them at its own binary.
export PENSTOCK := $(abspath $(O)/penstock)

progs_of  = $(patsubst %.c,$(O)/%,$(wildcard tests/$(1)/test_*.c))
# What is not test_*.c in a lane's folder, and all of tests/lib, is offered to each of its programs as an archive, so that a
# program takes only the helpers it calls and may have its own stand-in for what another helper pulls in.
helpers_of = $(patsubst %.c,$(O)/%.o,$(filter-out tests/$(1)/test_%,$(wildcard tests/$(1)/*.c)) $(wildcard tests/lib/*.c))
TEST_PROGS := $(foreach l,$(LANES_C),$(call progs_of,$(l)))
CRITERION  ?= -lcriterion

define c_lane
$(call helpers_of,$(1)) $(addsuffix .o,$(call progs_of,$(1))): | $(D)/stamp-test
$(O)/tests/$(1)/helpers.a: $(call helpers_of,$(1))
	@mkdir -p $$(@D)
	@rm -f $$@
	$$(Q)$(AR) rcsD $$@ $$(filter %.o,$$^)
$(call progs_of,$(1)): %: %.o $(O)/tests/$(1)/helpers.a $(LIBS) | $(D)/stamp-test
	$$(call say,LINK,$$@)
	$$(Q)$$(CC) $$(LDFLAGS_ALL) -o $$@ $$(filter %.o,$$^) $$(filter %/helpers.a,$$^) $$(LINK) $$(CRITERION) $$(LDLIBS_ALL)
.PHONY: test-$(1)
test-$(1): build $(call progs_of,$(1))
	@$(LANE) $(1) --jobs $(JOBS) --results $(RESULTS) $(call progs_of,$(1))
endef
$(foreach l,$(LANES_C),$(eval $(call c_lane,$(l))))

.PHONY: test-e2e test-root clients-of-release
# Clients are installed if that is possible; a script whose client is missing says so and skips.
clients-of-release: | $(D)/stamp-test
	@deploy/deps/setup e2e || echo "some clients could not be installed"

test-e2e: build clients-of-release
	@$(LANE) e2e --results $(RESULTS) $(wildcard tests/e2e/run-*)

test-root: build clients-of-release
	@if [ "$$(id -u)" = 0 ]; then $(LANE) root --results $(RESULTS) $(wildcard tests/root/run-*) $(call progs_of,root); \
	 else $(LANE) root --results $(RESULTS) --skip 'host: not root (run: sudo make test-root)'; fi

.PHONY: test
test:
	@rm -rf $(RESULTS); status=0; \
	for lane in $(TEST_LANES); do $(MAKE) --no-print-directory test-$$lane || status=1; done; \
	tests/lib/total $(RESULTS) $(TEST_LANES) || status=1; exit $$status

# For .ci/run, which adds up several runs.
.PHONY: print-lanes print-sanitizer-lanes
print-lanes:
	@echo $(TEST_LANES)
print-sanitizer-lanes:
	@echo $(SAN_LANES)

# ---- fuzzing -----------------------------------------------------------------------------------------------------------
# Each tests/fuzz/fuzz_X.c is built twice: with a plain main that replays tests/fuzz/corpus/X (lane "fuzz", any compiler), and
# with libFuzzer (fuzz-smoke, clang).

FUZZ_NAMES := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_REPLAY := $(FUZZ_NAMES:%=$(O)/tests/fuzz/fuzz_%)
FUZZ_SECONDS ?= 20

$(FUZZ_REPLAY): $(O)/tests/fuzz/fuzz_%: $(O)/tests/fuzz/fuzz_%.o $(O)/tests/fuzz/replay.o $(LIBS) | $(D)/stamp-build
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $(filter %.o,$^) $(LINK) $(LDLIBS_ALL)

.PHONY: test-fuzz fuzz-smoke
test-fuzz: build $(FUZZ_REPLAY)
	@$(LANE) fuzz --jobs $(JOBS) --results $(RESULTS) --replay tests/fuzz/corpus $(FUZZ_REPLAY)

FUZZ_O   := build/fuzz
FUZZ_SAN := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fsanitize=fuzzer-no-link
fuzz-smoke: | $(D)/stamp-build $(D)/stamp-fuzz
	@$(MAKE) --no-print-directory O=$(FUZZ_O) CC=$(CLANG) SAN='$(FUZZ_SAN)' OPT='-O1 -g' fuzz-programs
	@tests/fuzz/smoke $(FUZZ_O) $(FUZZ_SECONDS) $(FUZZ_NAMES)

FUZZ_LIVE := $(FUZZ_NAMES:%=$(O)/tests/fuzz/live_%)
.PHONY: fuzz-programs
fuzz-programs: $(FUZZ_LIVE)
$(FUZZ_LIVE): $(O)/tests/fuzz/live_%: $(O)/tests/fuzz/fuzz_%.o $(LIBS)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -fsanitize=fuzzer -o $@ $(filter %.o,$^) $(LINK) $(LDLIBS_ALL)

# ---- sanitizers ----------------------------------------------------------------------------------------------------------
# The same lanes, built apart. Criterion cannot start under the thread sanitizer (its arena falls into the shadow memory), so that
# build takes the small stand-in of tests/shim.

SAN_LANES ?= $(LANES_C) fuzz
SAN_asan  := -fsanitize=address -fno-sanitize-recover=all
SAN_ubsan := -fsanitize=undefined -fno-sanitize-recover=all
SAN_tsan  := -fsanitize=thread
SAN_EXTRA_tsan := CPPFLAGS=-Itests/shim CRITERION=

.PHONY: check-asan check-ubsan check-tsan
check-asan check-ubsan check-tsan: check-%:
	@rm -rf build/$*/results; status=0; \
	for lane in $(SAN_LANES); do \
		$(MAKE) --no-print-directory O=build/$* SAN='$(SAN_$*)' OPT='-O1 -g' $(SAN_EXTRA_$*) test-$$lane || status=1; done; \
	tests/lib/total build/$*/results $(SAN_LANES) || status=1; exit $$status

# ---- lint ------------------------------------------------------------------------------------------------------------------
# Each check is an executable tests/lint/check-*; a new one is found by its name.

C_SOURCES := $(sort $(foreach f,$(FOLDERS) tests/unit tests/contract tests/tcp tests/sim tests/fuzz tests/lib tests/bench tests/e2e,\
               $(wildcard $(f)/*.c $(f)/*.h)))
export LINT_CPPFLAGS := $(CPPFLAGS_ALL)
export LINT_CFLAGS := -std=gnu11 $(WARN)
export LINT_OUT := $(O)
.PHONY: lint format
lint: build | $(D)/stamp-lint
	@$(LANE) lint --timeout 1800 --jobs $(JOBS) --results $(RESULTS) --status-only $(wildcard tests/lint/check-*)

# Formats what you changed: files that differ from main or are new, so that nobody reformats what somebody else is editing.
# FILES=... names others, FILES=all takes every one.
FILES ?= $(shell git diff --name-only --diff-filter=d main 2>/dev/null; git ls-files --others --exclude-standard 2>/dev/null)
format: | $(D)/stamp-lint
	@files='$(filter $(if $(filter all,$(FILES)),%,$(FILES)),$(C_SOURCES))'; [ -z "$$files" ] || clang-format -i $$files

# ---- running and installing ----------------------------------------------------------------------------------------------

.PHONY: run install bench
run: build
	@deploy/run-demo $(O)/penstock

install: build
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/penstock
	install -m 755 $(O)/penstock $(DESTDIR)$(PREFIX)/bin/penstock
	for f in $(wildcard conf/examples/*.yaml conf/REFERENCE.md docs/*.md deploy/penstock.yaml deploy/credentials \
		deploy/prometheus/penstock.rules.yml deploy/prometheus/penstock.dashboard.json); do \
		install -m 644 $$f $(DESTDIR)$(PREFIX)/share/penstock/; done
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 man/penstock.1 $(DESTDIR)$(PREFIX)/share/man/man1/penstock.1
	if [ -f deploy/systemd/penstock.service ]; then \
		install -d $(DESTDIR)$(PREFIX)/lib/systemd/system; \
		sed 's,@PREFIX@,$(PREFIX),g' deploy/systemd/penstock.service >$(DESTDIR)$(PREFIX)/lib/systemd/system/penstock.service; fi
	install -d $(DESTDIR)$(PREFIX)/lib/sysusers.d $(DESTDIR)$(PREFIX)/lib/tmpfiles.d
	install -m 644 deploy/systemd/penstock.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/penstock.conf
	install -m 644 deploy/systemd/penstock.tmpfiles $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/penstock.conf

# A package for the release this runs on, from what "make install" would install.
DEB := $(O)/deb/penstock_$(VERSION)_$(shell dpkg --print-architecture 2>/dev/null).deb
.PHONY: deb
deb: build
	@rm -rf $(O)/deb && mkdir -p $(O)/deb
	@$(MAKE) --no-print-directory -s install DESTDIR=$(abspath $(O)/deb/root) PREFIX=/usr
	@deploy/debian/build $(O)/deb/root $(VERSION) $(DEB)
.PHONY: deb-check
deb-check: deb
	@deploy/deps/setup deb
	lintian --fail-on error $(DEB)

bench: build | $(D)/stamp-test
	@deploy/deps/setup bench
	@for script in $(wildcard tests/bench/run-*); do $$script || exit 1; done

# ---- cleaning and help -------------------------------------------------------------------------------------------------

.PHONY: clean distclean help FORCE
# Dependencies stay: fetching them again needs the network. "distclean" removes them too.
clean:
	@if [ -d $(O) ]; then find $(O) -mindepth 1 -maxdepth 1 ! -name deps -exec rm -rf {} +; fi
distclean:
	rm -rf build

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## deps          install what building and testing needs (root or sudo), unpack the newer libraries under build/deps
## build         build/penstock and the archives (the default)
## generate      write conf/REFERENCE.md and docs/METRICS.md anew from their tables
## run           build, format a file-backed store under ./run if there is none, start a node on 127.0.0.1:9000
## install       into $(DESTDIR)$(PREFIX)
## deb           a Debian package for this release, under build/deb (deb-check: and lintian over it)
## test          every lane this host can run; skips print their reason
## test-LANE     one lane: unit contract tcp sim fuzz e2e root
## check-asan    the C lanes under the address sanitizer (also check-ubsan, check-tsan)
## fuzz-smoke    each fuzz target for FUZZ_SECONDS (20) with libFuzzer
## lint          format, analysis, layers, lengths and the other mechanical checks
## format        apply the format to what you changed (FILES=all: to everything)
## bench         measure against nginx, fio, iperf3 and xdp-tools (CSV under build/bench)
## clean         remove what was built, keep the dependencies (distclean: those too)
## Variables:    O=build (output folder)  CC=gcc  V=1 (show commands)  JOBS=n (tests at once)

# ---- dependency files, fragments -----------------------------------------------------------------------------------------

ALL_OBJS := $(foreach f,$(FOLDERS),$(call objs_of,$(f))) $(O)/server/main.o $(TEST_PROGS:%=%.o) \
            $(foreach l,$(LANES_C),$(call helpers_of,$(l))) $(FUZZ_REPLAY:%=%.o) $(O)/tests/fuzz/replay.o
.SECONDARY: $(ALL_OBJS)
-include $(sort $(ALL_OBJS:.o=.d))
-include $(sort $(wildcard netcore/*/*.mk tests/*/*.mk kernel/*.mk))
