#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-drive: nvme size=64M name=powercut log=yes
# vm-modules: ext4 loop
# vm-timeout: 240
"""Loads a node whose store and index lie on one drive under a write log; 51-powercut-verify cuts its power."""
import powercut
import s3load
import vmtest

CLIENTS, OPERATIONS = 8, 30

plans = [s3load.make_plan("cut", number, OPERATIONS, keys=4, size_max=400_000) for number in range(CLIENTS)]
faults = powercut.write_load("sound", plans, ["/dev/nvme0n1"], write_unit="64KiB")
vmtest.check(f"{CLIENTS * OPERATIONS} operations were acknowledged, and the node stopped with status 0", not faults, str(faults))
