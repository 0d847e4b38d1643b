# SPDX-License-Identifier: Apache-2.0
#
# The VM lane: real zcrx, a real NVMe driver and power cuts under QEMU. Included by the Makefile; tests/vm/README.md explains.

.PHONY: test-vm vm-shell test-vm-unit
# CASE="name..." runs those cases only.
test-vm: build $(call progs_of,contract) $(D)/stamp-build $(D)/stamp-vm test-vm-unit kernel-module
	@tests/vm/run --build $(O) $(CASE)
vm-shell: build $(D)/stamp-build $(D)/stamp-vm
	@tests/vm/run --build $(O) --shell $(CASE)
test-vm-unit:
	@tests/vm/unit/run

## test-vm      boot Debian's newest kernel in QEMU and run tests/vm/cases inside (CASE=name for one)
## vm-shell     the same guest with a shell instead
