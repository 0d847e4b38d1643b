# SPDX-License-Identifier: Apache-2.0
#
# Builds, tests, checks and runs penstock. "make help" lists the targets; each sets up what it needs (deploy/deps).
#
# One static archive per folder, so that who may call whom can be checked on symbols. Sources are found by wildcard: a new file
# needs no line here. Sanitizer builds are this same file run with another O (build/asan, build/ubsan, build/tsan).
# Lanes of tests that need more than the host live in fragments (tests/*/*.mk, kernel/*.mk), included at the end.

MAKEFLAGS += --no-builtin-rules
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
MULTIARCH := $(shell $(CC) -print-multiarch 2>/dev/null || gcc -print-multiarch 2>/dev/null)
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
                -lnl-route-3 -lnl-genl-3 -lnl-3 -lxdp -lbpf -lpthread -lm

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
build: $(LIBS) $(PENSTOCK)

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

# ---- test programs -------------------------------------------------------------------------------------------------------

LANES_C  := unit contract tcp sim
progs_of  = $(patsubst %.c,$(O)/%,$(wildcard tests/$(1)/test_*.c))
# What is not test_*.c in a lane's folder, and all of tests/lib, is linked into each of its programs.
helpers_of = $(patsubst %.c,$(O)/%.o,$(filter-out tests/$(1)/test_%,$(wildcard tests/$(1)/*.c)) $(wildcard tests/lib/*.c))
TEST_PROGS := $(foreach l,$(LANES_C),$(call progs_of,$(l)))

define lane_rule
$(O)/tests/$(1)/test_%: $(O)/tests/$(1)/test_%.o $(call helpers_of,$(1)) $(LIBS) | $(D)/stamp-test
	$$(call say,LINK,$$@)
	$$(Q)$$(CC) $$(LDFLAGS_ALL) -o $$@ $$(filter %.o,$$^) $$(LINK) -lcriterion $$(LDLIBS_ALL)
endef
$(foreach l,$(LANES_C),$(eval $(call lane_rule,$(l))))
.SECONDARY: $(patsubst $(O)/%,$(O)/%.o,$(TEST_PROGS))

RESULTS := $(O)/results
LANE     = tests/lib/lane
.PHONY: $(LANES_C:%=test-%)
define lane_target
test-$(1): build $(call progs_of,$(1))
	@$(LANE) $(1) --jobs $(JOBS) --results $(RESULTS) $(call progs_of,$(1))
endef
$(foreach l,$(LANES_C),$(eval $(call lane_target,$(l))))

# ---- cleaning and help -------------------------------------------------------------------------------------------------

.PHONY: clean distclean help FORCE
# Dependencies stay: fetching them again needs the network. "distclean" removes them too.
clean:
	@if [ -d $(O) ]; then find $(O) -mindepth 1 -maxdepth 1 ! -name deps -exec rm -rf {} +; fi
distclean:
	rm -rf build

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## deps         install what building and testing needs (root or sudo), unpack the newer libraries under build/deps
## build        build/penstock and the archives (the default)
## test-unit    the unit tests alone
## clean        remove what was built, keep the dependencies

-include $(shell find $(O) -name '*.d' -not -path '$(D)/*' 2>/dev/null)
