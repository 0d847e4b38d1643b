#!/bin/dash
# SPDX-License-Identifier: Apache-2.0
# The device contract (tests/contract/test_dev_contract.c) over NVMe passthrough, on drives with blocks of 512 and of 4096 bytes, and on
# one whose controller moves at most 16 KiB a command, so that nearly every transfer is cut.
# vm-need: tests/contract/test_dev_contract
# vm-drive: nvme size=8M
# vm-drive: nvme size=8M lba=4096
# vm-drive: nvme size=8M options=mdts=2
# vm-memory: 1G
# vm-timeout: 120
. /vm/lib.sh

contract() {
    DEV_NVME=$2 test_dev_contract --tap -j1 --filter 'dev_contract/nvme*' > "/tmp/contract" 2>&1
    line=$(grep 'dev_contract::nvme_passthrough' /tmp/contract)
    case $line in
    *SKIP*) fail "$1: the device contract ran" "$line" ;;
    "ok - "*) pass "$1: the device contract holds" ;;
    *) fail "$1: the device contract holds" "$(tail -20 /tmp/contract)" ;;
    esac
}

mkdir -p build
contract "blocks of 512 bytes" /dev/ng0n1
contract "blocks of 4096 bytes" /dev/ng1n1
contract "16 KiB a command" /dev/ng2n1
