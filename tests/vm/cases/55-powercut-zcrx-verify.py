#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-after: 54-powercut-zcrx-write
# vm-drive: nvme from=powercutzcrx.log
# vm-modules: ext4 loop
# vm-timeout: 2400
"""Cuts the power at many places of the log that 54-powercut-zcrx-write left, starts the node on each disk and reads
everything back.  Control: on a disk that lies about flushes, losses must be found."""
import powercut
import s3load

CLIENTS, OPERATIONS = 8, 30
CUTS, CONTROL_CUTS, SIZE = 100, 10, 64 << 20

plans = [s3load.make_plan("zcrxcut", number, OPERATIONS, keys=4, size_max=400_000) for number in range(CLIENTS)]
powercut.one_drive("/dev/nvme0n1", "zcrx", plans, SIZE, CUTS, CONTROL_CUTS)
