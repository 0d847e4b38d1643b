#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# vm-need: penstock nsim
# vm-have: netdevsim
# vm-prog: zcrx_stream
# vm-modules: ext4
# vm-memory: 3G
# vm-cmdline: hugepages=160
# vm-timeout: 300
"""What undoing does with a journal that a crash, an editor, another card or another process has got at: it puts back what is ours and as
it was left, and nothing else."""
import os
import subprocess

import node as nodes
import nsim
import vmtest
import zcrxnode

CONFIG = "/tmp/penstock.yaml"
FOLDER = "/mnt/data"
KEPT = f"{FOLDER}/nic-nic.kept"


def nic(action):
    """(exit status, what it said) of `penstock nic`."""
    done = subprocess.run(("penstock", "nic", action, "--config", CONFIG), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def journals():
    return sorted(name for name in os.listdir(FOLDER) if name.startswith("nic-"))


def differs(one, other):
    return {key: (one[key], other[key]) for key in one if one[key] != other[key]}


def edited(change):
    """The journal's text before `change` of it was written in its place."""
    with open(KEPT) as file:
        text = file.read()
    with open(KEPT, "w") as file:
        file.write(change(text))
    return text


def undone(text, change, left=()):
    """Applies, edits, undoes: the NIC must be as found then, and these files left."""
    nic("apply")
    edited(change)
    status, said = nic("undo")
    vmtest.check(text, status == 0 and pair.snapshot() == found and journals() == list(left),
                 f"{status} {said[-300:]} {differs(pair.snapshot(), found)} {journals()}")
    for name in left:
        os.remove(f"{FOLDER}/{name}")


def left_alone(what, change):
    """A journal whose first line is not this card's or boot's any more."""
    nic("apply")
    before = pair.snapshot()
    was = edited(changed_fields(change))
    status, said = nic("undo")
    vmtest.check(f"the journal {what} changes nothing and goes", status == 0 and pair.snapshot() == before and journals() == [],
                 f"{status} {said[-300:]} {journals()}")
    with open(KEPT, "w") as file:
        file.write(was)
    nic("undo")
    vmtest.check("  and as it was it puts all back", pair.snapshot() == found, differs(pair.snapshot(), found))


def changed_fields(change):
    """An editor of the first line's index and boot id."""
    def editor(text):
        first, rest = text.split("\n", 1)
        return " ".join(change(first.split())) + "\n" + rest
    return editor


def renamed():
    nic("apply")
    vmtest.run("ip", "link", "set", "nic", "name", "moved")
    status, said = nic("undo")
    vmtest.run("ip", "link", "set", "moved", "name", "nic")
    vmtest.check("a card that was renamed is put back under its new name", status == 0 and pair.snapshot() == found,
                 f"{status} {said[-300:]} {differs(pair.snapshot(), found)}")


def table_of_others():
    nic("apply")
    pair.ethtool("-X", "equal", "3")
    theirs = pair.snapshot()["rss"]
    status, said = nic("undo")
    now = pair.snapshot()
    vmtest.check("an RSS table that somebody has set since stays", status == 0 and now["rss"] == theirs, f"{status} {said[-300:]}")
    pair.ethtool("-X", "equal", "4")
    vmtest.check("  and all else is as found", pair.snapshot() == found, differs(pair.snapshot(), found))


def another_process():
    """It receives into queue 2, over which the table that we found would spread, and needs split packets as we do."""
    def whole():
        return {key: value for key, value in pair.snapshot().items() if key != "rules"}
    nic("apply")
    ours = whole()
    other = subprocess.Popen(("zcrx_stream", "recv", "nic", "2", "5100", "1000", "conns=1", "pages=small", "wait=200"),
                             stdout=subprocess.PIPE, text=True)
    line = other.stdout.readline().strip()
    vmtest.check("another process receives into another queue", line == "listening", line)
    status, said = nic("undo")
    vmtest.check("  undoing takes our rule back, leaves the card as it is, and says why",
                 status != 0 and "another process" in said and whole() == ours and pair.snapshot()["rules"] == found["rules"],
                 f"{status} {said[-400:]} {differs(whole(), ours)}")
    vmtest.check("  the journal keeps the rest", journals() == ["nic-nic.journal"], journals())
    vmtest.check("  a node starts all the same", node.start(), node.log_tail())
    vmtest.check("  and ends", node.stop() == 0, node.log_tail())
    vmtest.check("  which leaves it alone as well", whole() == ours, differs(whole(), ours))
    other.kill()
    other.wait()
    # The kernel takes a ring's queues back some time after its process.
    vmtest.check("when the process is gone, undoing puts all back",
                 vmtest.until(30, lambda: nic("undo")[0] == 0) and pair.snapshot() == found, differs(pair.snapshot(), found))


pair = nsim.Pair(queues=4, prepared=False)
found = pair.snapshot()
node = nodes.prepare()
zcrxnode.configure(32)
code, told = nic("apply")
prepared = pair.snapshot()
vmtest.check("nic apply changes the NIC and keeps what it found", code == 0 and prepared != found and journals() == ["nic-nic.kept"],
             f"{code} {told} {journals()}")
code, told = nic("undo")
vmtest.check("nic undo puts it back", code == 0 and pair.snapshot() == found and journals() == [], f"{code} {told} {journals()}")
undone("a last line that was cut off changes nothing", lambda text: text + "table 4 1 0,0")
undone("a line that means nothing keeps no other from being undone, and is kept beside", lambda text: text + "nonsense\n",
       ["nic-nic.journal.bad"])
left_alone("of a card that is gone", lambda words: [words[0], "9999", words[2]])
left_alone("of another boot", lambda words: [words[0], words[1], "00000000-0000-0000-0000-000000000000"])
renamed()
table_of_others()
another_process()
nodes.release(node)
pair.close()
