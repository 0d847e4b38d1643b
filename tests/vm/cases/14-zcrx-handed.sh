#!/bin/dash
# SPDX-License-Identifier: Apache-2.0
# Connections that one worker hands to another, and receives that change their area (tests/contract/test_zcrx_handed.c), device-less.
# vm-need: tests/contract/test_zcrx_handed
# vm-timeout: 240
. /vm/lib.sh

ZCRX_MUST=1 timeout 200 test_zcrx_handed --tap -j1 > /tmp/zcrx-handed 2>&1
while read -r line; do
    case $line in
    "ok - "*) pass "${line#ok - }" ;;
    "not ok - "*) fail "${line#not ok - }" "$(grep -A12 -F "$line" /tmp/zcrx-handed)" ;;
    esac
done < /tmp/zcrx-handed
grep -q '^ok - ' /tmp/zcrx-handed || fail "the test ran" "$(tail -5 /tmp/zcrx-handed)"
