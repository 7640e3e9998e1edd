"""A worker that takes items from a shared queue until all are done, and writes down what it does.

    python queue_worker.py URL LOG SECONDS ITEM...

It works SECONDS on an item. Each line of LOG is `begin ITEM PID` or `end ITEM PID`. Items that
are lost count as done.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from autofit.fleet.storage import open_storage
from autofit.fleet.work_queue import WorkQueue


def main(url: str, log: str, seconds: float, names: list[str]) -> None:
    """Work until no item is open."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(text: str) -> None:
        os.write(descriptor, f"{text} {os.getpid()}\n".encode())

    storage = open_storage(url, report=lambda text: print(text, file=sys.stderr, flush=True))
    queue = WorkQueue.join(storage, "night", {"version": "1"}, names, folder=str(os.getpid()))
    write("join -")
    while any(item.state in ("waiting", "running") for item in queue.items().values()):
        queue.revive()
        claim = queue.claim(names)
        if claim is None:
            time.sleep(random.uniform(0.1, 0.3))
            continue
        with claim:
            write(f"begin {claim.name}")
            time.sleep(seconds)
            write(f"end {claim.name}")
            claim.deliver({"pid": os.getpid()}, seconds)


def end_with(parent: int) -> None:
    """End this process when its parent has ended."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4:])
    except KeyboardInterrupt:
        sys.exit(130)
