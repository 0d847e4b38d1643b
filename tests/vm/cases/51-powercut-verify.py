#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-after: 50-powercut-write
# vm-drive: nvme from=powercut.log
# vm-modules: ext4 loop
# vm-timeout: 900
"""Cuts the power at 100 places of the log that 50-powercut-write left, starts the node on each disk and reads
everything back.  Control: on a disk that lies about flushes, losses must be found."""
import powercut
import s3load
import vmtest
import writelog

CLIENTS, OPERATIONS = 8, 30
CUTS, CONTROL_CUTS, SIZE = 100, 10, 64 << 20

plans = [s3load.make_plan("cut", number, OPERATIONS, keys=4, size_max=400_000) for number in range(CLIENTS)]
log = writelog.Log("/dev/nvme0n1")
run = powercut.Run(log, "sound", plans)


def verify(number, cuts, lies_from=None):
    bench, image, verdict = powercut.Bench(number), powercut.Disk(log, SIZE, f"/tmp/cut{number}"), powercut.Verdict()
    for cut in cuts:
        tally = image.make(cut, "cut", lies_from)
        drive = (image.path, SIZE)
        verdict.add(cut, tally, bench.with_node(drive, drive, powercut.read_back(plans, run.positions_at(cut))))
    return verdict


def verify_on_a_liar(number, cuts):
    return verify(number, cuts, run.start)


vmtest.check("the log holds the markers", len(run.acks) == CLIENTS * OPERATIONS, f"{len(run.acks)}")
found = powercut.share(verify, writelog.choose_cuts(log, CUTS, "cut", run.start + 1))
kept, dropped, torn = found.tally
vmtest.check(f"{found.cuts} cuts ({kept} volatile writes kept, {dropped} dropped, {torn} torn): nothing acknowledged "
             "is lost, nothing is partial", not found.bad, f"{found.bad} cuts: {found.faults}")
vmtest.check("the cuts dropped and tore writes", dropped > CUTS // 2 and torn > CUTS // 10, str(found.tally))
found = powercut.share(verify_on_a_liar, writelog.choose_cuts(log, CONTROL_CUTS, "control", run.start + 1))
vmtest.check(f"control: a disk that lies about flushes is found out ({found.bad} of {found.cuts})", found.bad > 0, "not once")
