#!/bin/dash
# SPDX-License-Identifier: Apache-2.0
# How requests of zero-copy receive end (tests/contract/test_zcrx_ends.c): a full completion queue, overflow, an exhausted area,
# a full queue of our own, the end of a stream, and errors. Device-less, so every one is the kernel's own.
# vm-need: tests/contract/test_zcrx_ends
# vm-timeout: 240
. /vm/lib.sh

criterion "" env ZCRX_MUST=1 timeout 200 test_zcrx_ends
