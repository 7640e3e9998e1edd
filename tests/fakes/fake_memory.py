"""Prints `NAME total free used` in MiB for each device of a simulated machine.

The program a dialect's `memory_command` runs; FAKE_MACHINE names the machine file. With
`--host` a line reports the host, with `--lent` one `NAME.gtt` per device of the host memory
that the driver put in the place of the device's own.
"""

# ruff: noqa: PTH100, PTH120, PTH123 -- the path comes before our imports; pathlib would slow every start

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from fakes.machine import Machine
from fakes.memory_state import State, lent, reading


def main() -> int:
    """Print one line per device."""
    path = os.environ["FAKE_MACHINE"]
    with open(path, encoding="utf-8") as file:
        machine = Machine.from_json(file.read())
    state = State(os.environ.get("FAKE_STATE", path + ".state"), machine)
    for name, total, free, used in reading(state):
        if name != "host" or "--host" in sys.argv:
            print(f"{name} {total:.0f} {free:.0f} {used:.0f}")
    for name, used in lent(state) if "--lent" in sys.argv else ():
        ram = machine.host.ram_mib
        print(f"{name}.gtt {ram:.0f} {ram - used:.0f} {used:.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
