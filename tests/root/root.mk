# SPDX-License-Identifier: Apache-2.0
#
# C programs of the root lane: Criterion, run beside its scripts.

ROOT_PROGS := $(call progs_of,root)
$(ROOT_PROGS): %: %.o $(LIBS) | $(D)/stamp-test
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $(filter %.o,$^) $(LINK) $(CRITERION) $(LDLIBS_ALL)
# run-rx-xdp.sh runs the contract test over AF_XDP.
test-root: $(ROOT_PROGS) $(O)/tests/contract/test_rx_contract
-include $(ROOT_PROGS:=.d)
