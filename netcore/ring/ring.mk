# SPDX-License-Identifier: Apache-2.0
#
# The XDP program: compiled for the BPF machine and built into the binary as bytes, so that no file must be found at run time.
# Always clang, whatever CC is: gcc of these releases has no BPF.

XSK_PROG := $(O)/gen/xsk_prog_bytes.h

$(O)/gen/xsk_prog.bpf.o: netcore/ring/xsk_prog.bpf.c netcore/ring/xsk_prog.h | $(D)/stamp-build
	@mkdir -p $(@D)
	$(call say,BPF,$<)
	$(Q)$(CLANG) -target bpf -O2 -g -Wall -Wextra -Werror -Wno-unused-parameter $(SYSINC) -I/usr/include/$(MULTIARCH) -c -o $@ $<

$(XSK_PROG): $(O)/gen/xsk_prog.bpf.o
	$(Q)od -An -v -tx1 $< | sed 's/ \(..\)/0x\1,/g' >$@

$(O)/netcore/ring/xsk_load.o: $(XSK_PROG)
