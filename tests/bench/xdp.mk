# SPDX-License-Identifier: Apache-2.0
# Sender and receiver of frames for tests/bench/run-xdp.
$(O)/tests/bench/xsk_rate: $(O)/tests/bench/xsk_rate.o $(LIBS) | $(D)/stamp-build
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $(filter %.o,$^) $(LINK) $(LDLIBS_ALL)
