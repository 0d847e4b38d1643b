#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock
# vm-after: 52-powercut-two-write
# vm-drive: nvme from=twostore.log
# vm-drive: nvme from=twoindex.log
# vm-modules: ext4 loop
# vm-timeout: 600
"""Cuts store and index drive of 52-powercut-two-write together right after answers: what each drive was not told to
flush by then is dropped or torn.  The sound node loses nothing; each node with a fault planted is found out."""
import powercut
import s3load
import vmtest
import writelog

OPERATIONS, SIZE = 24, 64 << 20

logs = [writelog.Log("/dev/nvme0n1"), writelog.Log("/dev/nvme1n1")]


def verify_run(name, step):
    """Cuts after every `step`-th operation of a run; returns the Verdict."""
    plan = s3load.make_plan(name, 0, OPERATIONS, keys=6)
    runs = [powercut.Run(log, name, [plan]) for log in logs]

    def work(number, operations):
        bench, verdict = powercut.Bench(number), powercut.Verdict()
        images = [powercut.Disk(log, SIZE, f"/tmp/two{number}{part}") for part, log in enumerate(logs)]
        for operation in operations:
            tallies = [image.make(run.acks[operation][0], name) for image, run in zip(images, runs)]
            drives = [(image.path, SIZE) for image in images]
            faults = bench.with_node(*drives, powercut.read_back([plan], [operation + 1]))
            verdict.add(operation, [sum(column) for column in zip(*tallies)], faults)
        return verdict

    return powercut.share(work, list(range(0, OPERATIONS, step)))


found = verify_run("sound", 1)
vmtest.check(f"{found.cuts} cuts right after an answer lose nothing on two drives", not found.bad, f"{found.bad}: {found.faults}")
for fault, step in (("no-flush", 4), ("no-sync", 4)):
    found = verify_run(fault, step)
    vmtest.check(f"control: a node with {fault} is found out ({found.bad} of {found.cuts})", found.bad > 0, str(found.tally))
