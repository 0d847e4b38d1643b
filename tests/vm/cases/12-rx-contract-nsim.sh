#!/bin/dash
# SPDX-License-Identifier: Apache-2.0
# The receive contract over zero-copy receive on the software NIC: netdevsim prepared by netcore/nic (hardware GRO, header
# split, RSS, rule) as for a listener, clients in another network namespace, once per receive-buffer size.
# vm-need: nsim tests/contract/test_rx_contract
# vm-have: netdevsim
# vm-cmdline: hugepages=64
# vm-timeout: 240
. /vm/lib.sh

contract() {
    RX_STEPS=4000 RX_BACKEND=zcrx RX_INTERFACE=nsim0 RX_QUEUE=1 RX_ADDRESS=10.8.0.1 RX_NETNS=peer RX_BUFFER_SIZE=$1 \
        test_rx_contract --tap -j1 > "/tmp/contract-$1" 2>&1
    while read -r line; do
        case $line in
        "ok - "*) pass "$1: ${line#ok - }" ;;
        "not ok - "*) fail "$1: ${line#not ok - }" "$(grep -A12 -F "$line" "/tmp/contract-$1")" ;;
        esac
    done < "/tmp/contract-$1"
    grep -q '^ok - ' "/tmp/contract-$1" || fail "$1: the contract test ran" "$(tail -5 "/tmp/contract-$1")"
}

load netdevsim
need nsim_pair 4
contract 32768
nsim_remove
ok "the module unloads" rmmod netdevsim
