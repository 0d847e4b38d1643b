#!/bin/dash
# SPDX-License-Identifier: Apache-2.0
# How requests of zero-copy receive end (tests/contract/test_zcrx_ends.c): a full completion queue, overflow, an exhausted area,
# a full queue of our own, the end of a stream, and errors. Device-less, so every one is the kernel's own.
# vm-need: tests/contract/test_zcrx_ends
# vm-timeout: 240
. /vm/lib.sh

ZCRX_MUST=1 timeout 200 test_zcrx_ends --tap -j1 > /tmp/zcrx-ends 2>&1
while read -r line; do
    case $line in
    "ok - "*) pass "${line#ok - }" ;;
    "not ok - "*) fail "${line#not ok - }" "$(grep -A12 -F "$line" /tmp/zcrx-ends)" ;;
    esac
done < /tmp/zcrx-ends
grep -q '^ok - ' /tmp/zcrx-ends || fail "the test ran" "$(tail -5 /tmp/zcrx-ends)"
