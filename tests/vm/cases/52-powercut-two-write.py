#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock fault/NO_FLUSH/penstock fault/NO_INDEX_SYNC/penstock
# vm-drive: nvme size=64M name=twostore log=yes
# vm-drive: nvme size=64M name=twoindex log=yes
# vm-modules: ext4 loop
# vm-timeout: 240
"""Loads a node whose store and index lie on a drive each, both under a write log: on one drive the index's
flush would hide a payload flush that is missing.  So does a node without the payload's flush, and one without the
index's syncs.  One client works alone, so that at each marker nothing is under way and both logs can be cut there."""
import powercut
import s3load
import vmtest

OPERATIONS = 24
PROGRAMS = [("sound", "penstock"), ("no-flush", "penstock-NO_FLUSH"), ("no-sync", "penstock-NO_INDEX_SYNC")]

for run, program in PROGRAMS:
    # A plan of its own: payload that an earlier run left at the same place must not pass for this one's.
    plan = s3load.make_plan(run, 0, OPERATIONS, keys=6)
    faults = powercut.write_load(run, [plan], ["/dev/nvme0n1", "/dev/nvme1n1"], program=program)
    vmtest.check(f"{run}: {OPERATIONS} operations were acknowledged", not faults, str(faults))
