# SPDX-License-Identifier: GPL-2.0
# Targets of kernel/, included by the root Makefile. Results go to build/kernel/; what is costly
# is cached outside the tree, by hash of base, patches, configuration and recipe.

KERNEL_OUT ?= build/kernel

.PHONY: kernel-module
# The software NIC for Debian's stock kernel: build/kernel/netdevsim.ko and psample.ko.
kernel-module: | $(D)/stamp-build $(D)/stamp-kernel
	@kernel/build-module.sh $(KERNEL_OUT)

.PHONY: kernel kernel-minimal kernel-lockdep kernel-selftest kernel-check test-vm-kernel
# A small kernel with the whole series: build/kernel/minimal/bzImage (minutes of CPU the first time).
kernel: kernel-minimal
kernel-minimal: | $(D)/stamp-build $(D)/stamp-kernel
	@kernel/build-kernel.sh minimal $(KERNEL_OUT)/minimal
# The same with lockdep and KASAN.
kernel-lockdep: | $(D)/stamp-build $(D)/stamp-kernel
	@kernel/build-kernel.sh lockdep $(KERNEL_OUT)/lockdep
# Every patch applies, compiles on its own and adds no warning.
kernel-check: | $(D)/stamp-build $(D)/stamp-kernel
	@kernel/check.sh
# The kernel's own test of the software NIC, packed for a guest.
kernel-selftest: | $(D)/stamp-build $(D)/stamp-kernel
	@kernel/build-selftest.sh $(KERNEL_OUT) $(O)/deps
# What touches the patches; KERNEL_CASES="..." for some of them.
KERNEL_CASES ?= netdevsim rx-contract-nsim nsim-zcrx nsim-rx-buf-len socket-rx-buf-len nsim-selftest zcrx-node
# The software NIC and the netlink API on the patched kernel: with lockdep and KASAN, or KERNEL_VARIANT=minimal without.
KERNEL_VARIANT ?= lockdep
# That kernel is some ten times slower under emulation.
KERNEL_PATIENCE ?= $(if $(filter lockdep,$(KERNEL_VARIANT)),4,1)
test-vm-kernel: build kernel-$(KERNEL_VARIANT) kernel-selftest $(call progs_of,contract) $(D)/stamp-build $(D)/stamp-vm
	@tests/vm/run --build $(O) --kernel $(KERNEL_OUT)/$(KERNEL_VARIANT) --patience $(KERNEL_PATIENCE) $(KERNEL_CASES)

## kernel-module    build the software NIC (patched netdevsim) for Debian's stock kernel
## kernel           build a small kernel with the patch series (minutes)
## kernel-check     check the patch series one by one
## test-vm-kernel   run the software NIC cases on the patched kernel with lockdep and KASAN
