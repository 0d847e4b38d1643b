#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A drive with 4 KiB logical blocks and a second one beside it: the lane can give the cases both.
# vm-drive: nvme size=128M lba=4096
# vm-drive: nvme size=64M
# vm-memory: 1G
# vm-modules: ext4 xfs loop
# vm-prog: dioalign
. /vm/lib.sh

is "logical block of the first is 4096 bytes" 4096 "$(cat /sys/block/nvme0n1/queue/logical_block_size)"
is "statx asks for 4096-byte offsets" "mem 4 offset 4096" "$(dioalign /dev/nvme0n1)"
is "logical block of the second is 512 bytes" 512 "$(cat /sys/block/nvme1n1/queue/logical_block_size)"
need mkfs.ext4 -q /dev/nvme0n1
ok "ext4 mounts" mount -t ext4 /dev/nvme0n1 /mnt
ok "and is written to" sh -c 'echo hello >/mnt/a && sync && umount /mnt'
