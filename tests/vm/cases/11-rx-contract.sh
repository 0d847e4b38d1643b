#!/bin/dash
# SPDX-License-Identifier: Apache-2.0
# The receive contract (tests/contract/test_rx_contract.c) on this kernel: once over plain sockets, once over zero-copy
# receive in its device-less mode, in which the kernel copies but every completion, refill and error is real.
# vm-need: tests/contract/test_rx_contract
# vm-timeout: 120
. /vm/lib.sh

contract() {
    RX_STEPS=4000 RX_BACKEND=$1 test_rx_contract --tap -j1 > "/tmp/contract-$1" 2>&1
    while read -r line; do
        case $line in
        "ok - "*) pass "$1: ${line#ok - }" ;;
        "not ok - "*) fail "$1: ${line#not ok - }" "$(grep -A12 -F "$line" "/tmp/contract-$1")" ;;
        esac
    done < "/tmp/contract-$1"
    grep -q '^ok - ' "/tmp/contract-$1" || fail "$1: the contract test ran" "$(tail -5 "/tmp/contract-$1")"
}

contract socket
contract zcrx
