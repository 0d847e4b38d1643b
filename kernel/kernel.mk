# SPDX-License-Identifier: GPL-2.0
# Targets of kernel/, included by the root Makefile. Results go to build/kernel/; what is costly
# is cached outside the tree, by hash of base, patches, configuration and recipe.

KERNEL_OUT ?= build/kernel

.PHONY: kernel-module
# The software NIC for Debian's stock kernel: build/kernel/netdevsim.ko and psample.ko.
kernel-module: | $(D)/stamp-build $(D)/stamp-kernel
	@kernel/build-module.sh $(KERNEL_OUT)
