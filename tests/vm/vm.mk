# SPDX-License-Identifier: Apache-2.0
#
# The VM lane: real zcrx, a real NVMe driver and power cuts under QEMU. Included by the Makefile; tests/vm/README.md explains.

.PHONY: test-vm vm-shell test-vm-unit
# CASE="name..." runs those cases only; FULL=1 gives cases that have one their longer form.
test-vm: build $(O)/penstock-hang vm-faults $(call progs_of,contract) $(D)/stamp-build $(D)/stamp-vm test-vm-unit kernel-module
	@tests/vm/run --build $(O) $(if $(FULL),--full) $(CASE)
# What a buffer size costs, in counts that mean something under emulation; the XSK layer next to xdp-tools, in ratios that do.
.PHONY: bench-vm
bench-vm: build $(O)/tests/bench/xsk_rate $(D)/stamp-build $(D)/stamp-bench $(D)/stamp-vm kernel-module
	@tests/vm/run --build $(O) --lane bench $(CASE)
vm-shell: build $(D)/stamp-build $(D)/stamp-vm
	@tests/vm/run --build $(O) --shell $(CASE)
# Servers with a fault planted (tests/README.md), which the power-cut cases must find: one object differs, so it is linked in before
# the archive that has the sound one.
VM_FAULTS := NO_FLUSH NO_INDEX_SYNC
vm-faults: $(VM_FAULTS:%=$(O)/fault/%/penstock) $(O)/protect/penstock
.PHONY: vm-faults
$(O)/fault/%/penstock: storage/store.c $(O)/penstock
	@mkdir -p $(@D)
	$(call say,FAULT,$*)
	$(Q)$(CC) $(CPPFLAGS_ALL) -DPENSTOCK_FAULT_$* $(CFLAGS_ALL) -c -o $(@D)/store.o $<
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $(O)/server/main.o $(@D)/store.o $(LINK) $(LDLIBS_ALL)
# A server whose receive area the CPU may not touch (netcore/base/peek.h): the files that read payload, built as a proof.
VM_PROTECT := netcore/base/peek netcore/base/arena storage/crc32c storage/pack server/http_conn server/thread
$(O)/protect/penstock: $(VM_PROTECT:%=%.c) $(O)/penstock
	@mkdir -p $(@D)
	$(call say,PROTECT,$@)
	$(Q)for file in $(VM_PROTECT); do $(CC) $(CPPFLAGS_ALL) -DPENSTOCK_PROTECT_AREA $(CFLAGS_ALL) -c \
		-o $(@D)/$$(basename $$file).o $$file.c || exit 1; done
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $(O)/server/main.o $(addprefix $(@D)/,$(addsuffix .o,$(notdir $(VM_PROTECT)))) $(LINK) $(LDLIBS_ALL)
test-vm-unit: | $(D)/stamp-vm
	@tests/vm/unit/run

## test-vm      boot Debian's newest kernel in QEMU and run tests/vm/cases inside (CASE=name for one)
## bench-vm     completions, writes, CPU ratio and copies by receive-buffer size, on the software NIC; AF_XDP next to xdp-tools
## vm-shell     the same guest with a shell instead
