# SPDX-License-Identifier: Apache-2.0
"""Decides which boot runs when: several at a time, in order, none before those it comes after.

Pure but for the threads it works with; what a boot is, is the caller's `work`.
"""
import concurrent.futures


def is_ready(group, unfinished):
    """Whether all cases that this group's cases come after are done, those of the group itself apart."""
    own = {case.name for case in group}
    return not any(name in unfinished and name not in own for case in group for name in case.words("after"))


def run(groups, jobs, work):
    """Calls work(group) for each group, at most `jobs` at a time; raises what it raises."""
    waiting, running = list(groups), {}
    with concurrent.futures.ThreadPoolExecutor(max_workers=jobs) as pool:
        while waiting or running:
            unfinished = {case.name for group in waiting + list(running.values()) for case in group}
            for group in list(waiting):
                if len(running) < jobs and is_ready(group, unfinished):
                    waiting.remove(group)
                    running[pool.submit(work, group)] = group
            if not running:
                raise ValueError("cases wait for each other: " + " ".join(c.name for g in waiting for c in g))
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                running.pop(future)
                future.result()
