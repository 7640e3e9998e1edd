"""A substitute for autofit, for tests that kill it: it starts a command and waits for it.

Arguments: LOG_FILE STOP_IN_FINALLY(0|1) PROGRAM ARGS...
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from autofit.process.managed_process import ManagedProcess


def main() -> None:
    """Run one program until it or we end."""
    log, stops, *argv = sys.argv[1:]
    process = ManagedProcess.start(argv, env=os.environ, log_path=Path(log))
    print(process.pid, flush=True)
    try:
        while process.poll() is None:
            time.sleep(0.02)
    finally:
        if int(stops):
            process.stop(5.0)


if __name__ == "__main__":
    main()
