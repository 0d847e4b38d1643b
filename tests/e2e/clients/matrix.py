#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""S3 clients against one node: client x transport x operation, each cell a pass, a failure, a skip or not applicable.

    tests/e2e/clients/matrix.py [--client NAME]... [--transport NAME]... [--operation NAME]... [--jobs N] [--markdown FILE]

It closes with a table and "N passed, N failed, N skipped". What a client cannot do is "-" in the table, with its reason below, and
counted nowhere. RECEIVE=af_xdp is for tests/root/run-clients-xdp.sh (place.py). A client or nginx that is not installed, or a node that serves no TLS, is a skip, and with CI=true a failure, unless the release
has no such client ("host: ..."). E2E_NPM is the folder that npm ci ran in.
"""

import argparse
import concurrent.futures
import os
import shutil
import signal
import sys
import threading
import time
import traceback

from drivers import DRIVERS, OPERATIONS, Missing, NotApplicable
from place import TRANSPORTS, Place

IN_CI = os.environ.get("CI") == "true"
print_lock = threading.Lock()


class Cell:
    def __init__(self, kind, text=""):
        self.kind, self.text = kind, text  # kind: pass, fail, skip, none


def method_of(operation):
    return operation.replace(" ", "_")


def absent(reason):
    """Something that a set-up could have installed, unless the reason begins with "host: "."""
    return Cell("fail" if IN_CI and not reason.startswith("host: ") else "skip", reason)


def run_cell(driver, operation):
    start = time.monotonic()
    try:
        said = getattr(driver, method_of(operation))()
    except NotApplicable as reason:
        return Cell("none", str(reason))
    except Exception:
        return Cell("fail", traceback.format_exc(limit=-2))
    finally:
        seconds = time.monotonic() - start
        if seconds > 10:
            with print_lock:
                print(f"{driver.name} {driver.transport} {operation}: {seconds:.1f} s", flush=True)
    return Cell("pass", said or "ok")


def run_row(place, kind, transport, operations):
    """All operations of a client through a transport, one after the other, in a bucket and a folder that are gone afterwards."""
    if transport in kind.cannot:
        return {operation: Cell("none", kind.cannot[transport]) for operation in operations}
    if transport in place.never:
        return {operation: Cell("none", place.never[transport]) for operation in operations}
    if transport in place.absent:
        return {operation: absent(place.absent[transport]) for operation in operations}
    folder = os.path.join(place.folder, f"{kind.name}-{transport}")
    os.makedirs(folder)
    driver = kind(place, transport, folder)
    driver.prepare()
    start = time.monotonic()
    row = {operation: run_cell(driver, operation) for operation in operations}
    place.truth.empty(driver.bucket)
    shutil.rmtree(folder, ignore_errors=True)
    with print_lock:
        print(f"{kind.name} {transport}: {sum(cell.kind == 'pass' for cell in row.values())} passed "
              f"({time.monotonic() - start:.1f} s)", flush=True)
        for operation, cell in row.items():
            if cell.kind == "fail":
                print(f"FAIL {kind.name} {transport} {operation}\n{cell.text}", flush=True)
    return row


def find_clients(chosen):
    """(kind, version) per client that is there, (kind, reason) per one that is not."""
    there, missing = [], []
    for kind in DRIVERS:
        if chosen and kind.name not in chosen:
            continue
        try:
            there.append((kind, kind.version()))
        except Missing as reason:
            missing.append((kind, str(reason)))
    return there, missing


def run_matrix(place, there, missing, transports, operations, jobs):
    rows = {(kind.name, transport): {operation: absent(reason) for operation in operations}
            for kind, reason in missing for transport in transports}
    # The slow ones first, so that the end is not one of them alone.
    order = [(kind, transport) for kind, _ in there for transport in transports]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = {(kind.name, transport): pool.submit(run_row, place, kind, transport, operations) for kind, transport in order}
        for place_of_row, future in futures.items():
            rows[place_of_row] = future.result()
    return rows


SHOWN = {"fail": "FAIL", "skip": "skip", "none": "-"}


def print_table(rows, operations):
    widths = [max(len(operation), 4) for operation in operations]
    print("\n" + f"{'client':14}{'transport':14}" + "  ".join(o.ljust(w) for o, w in zip(operations, widths)))
    for (client, transport), row in rows.items():
        shown = [SHOWN.get(row[operation].kind, row[operation].text) for operation in operations]
        print(f"{client:14}{transport:14}" + "  ".join(s.ljust(w) for s, w in zip(shown, widths)).rstrip())
    print()


def print_reasons(rows):
    """Each reason once, with the cells it is for."""
    reasons = {}
    for (client, transport), row in rows.items():
        for operation, cell in row.items():
            if cell.kind in ("skip", "none") or cell.kind == "fail" and "\n" not in cell.text:
                reasons.setdefault((cell.kind, cell.text), []).append((client, transport, operation))
    for (kind, text), cells in reasons.items():
        clients = sorted({client for client, _, _ in cells})
        transports = {transport for _, transport, _ in cells}
        where = f"{', '.join(clients)}" + (f" ({', '.join(sorted(transports))})" if len(transports) < 3 else "")
        # Skips count one per cell, so the line says how many it stands for.
        print(f"{'SKIP' if kind == 'skip' else 'FAIL' if kind == 'fail' else 'none'} {where}: {len(cells)} cells: {text}")


def markdown(rows, versions, operations, transports):
    """A row per client; a cell names the transports that fail, or says that all that were run pass."""
    lines = ["| client | version | " + " | ".join(operations) + " |", "|---|---|" + "---|" * len(operations)]
    for client, version in versions.items():
        texts = []
        for operation in operations:
            cells = {transport: rows[client, transport][operation] for transport in transports}
            passed = [t for t, cell in cells.items() if cell.kind == "pass"]
            failed = [t for t, cell in cells.items() if cell.kind == "fail"]
            if failed:
                texts.append("fails: " + ", ".join(failed))
            elif passed:
                said = {cells[t].text for t in passed}
                texts.append(f"{' '.join(said)} {len(passed)}")
            else:
                texts.append("\u2013" if any(cell.kind == "none" for cell in cells.values()) else "skipped")
        lines.append(f"| {client} | {version} | " + " | ".join(texts) + " |")
    run = [t for t in transports if any(rows[c, t][o].kind in ("pass", "fail") for c in versions for o in operations)]
    lines += ["", "A cell says through how many transports the operation passed. Transports of this run: " +
              "; ".join(f"{t} ({TRANSPORTS[t]})" for t in run) + ".", ""]
    lines += [f"- {operation}: {OPERATIONS[operation]}" for operation in operations]
    return "\n".join(lines) + "\n"


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--client", action="append", choices=[kind.name for kind in DRIVERS])
    parser.add_argument("--transport", action="append", choices=list(TRANSPORTS))
    parser.add_argument("--operation", action="append", choices=list(OPERATIONS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--markdown")
    return parser.parse_args()


def main():
    options = parse()
    # A lane that takes too long is told to end: the node and nginx must go with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    transports = options.transport or list(TRANSPORTS)
    operations = options.operation or list(OPERATIONS)
    there, missing = find_clients(options.client)
    start = time.monotonic()
    place = Place()
    with place.node:
        try:
            rows = run_matrix(place, there, missing, transports, operations, options.jobs)
        finally:
            place.stop()
    print_table(rows, operations)
    print_reasons(rows)
    if options.markdown:
        with open(options.markdown, "w") as f:
            f.write(markdown(rows, {kind.name: version for kind, version in there}, operations, transports))
    count = {kind: sum(cell.kind == kind for row in rows.values() for cell in row.values()) for kind in ("pass", "fail", "skip")}
    print(f"{len(there)} clients, {time.monotonic() - start:.0f} s")
    print(f"{count['pass']} passed, {count['fail']} failed, {count['skip']} skipped")
    sys.exit(1 if count["fail"] else 0)


if __name__ == "__main__":
    main()
