#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The emulated NVMe takes odd fragments: 4-byte aligned addresses, no virtual boundary (the controller
# offers SGL).  This is what lets received fragments go to the device as they lie.
# vm-prog: dioalign
. /vm/lib.sh

queue=/sys/block/nvme0n1/queue
is "dma_alignment is 3" 3 "$(cat $queue/dma_alignment)"
is "virt_boundary_mask is 0" 0 "$(cat $queue/virt_boundary_mask)"
is "logical block is 512 bytes" 512 "$(cat $queue/logical_block_size)"
is "the write cache is volatile" "write back" "$(cat $queue/write_cache)"
is "statx asks for 4-byte addresses and 512-byte offsets" "mem 4 offset 512" "$(dioalign /dev/nvme0n1)"
ok "the passthrough device /dev/ng0n1 exists" test -c /dev/ng0n1
