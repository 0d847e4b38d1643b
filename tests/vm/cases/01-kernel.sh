#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The guest runs the kernel the lane was asked for, with what the data path needs compiled in.
. /vm/lib.sh

series=$(uname -r | cut -d. -f1-2)
case $series in
    7.[2-9]|7.[1-9][0-9]|[89].*) pass "kernel $(uname -r) is 7.2 or newer" ;;
    *) fail "kernel is 7.2 or newer" "it is $(uname -r)" ;;
esac
ok "io_uring is allowed" test "$(cat /proc/sys/kernel/io_uring_disabled)" = 0
ok "huge pages of 2 MiB exist" test -d /sys/kernel/mm/hugepages/hugepages-2048kB
