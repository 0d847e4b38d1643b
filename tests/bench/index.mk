# SPDX-License-Identifier: Apache-2.0
# The index's own measurement: build/tests/bench/index_scale (run by tests/bench/run-index).
$(O)/tests/bench/index_scale: $(O)/tests/bench/index_scale.o $(LIBS) | $(D)/stamp-build
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $(filter %.o,$^) $(LINK) $(LDLIBS_ALL)
