#!/bin/dash
# SPDX-License-Identifier: Apache-2.0
# Connections that one worker hands to another, and receives that change their area (tests/contract/test_zcrx_handed.c), device-less.
# vm-need: tests/contract/test_zcrx_handed
# vm-timeout: 240
. /vm/lib.sh

criterion "" env ZCRX_MUST=1 timeout 200 test_zcrx_handed
