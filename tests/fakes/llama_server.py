"""A fake llama-server: a real program with the flags, log, API and failures of the real one.

Its machine is the JSON file FAKE_MACHINE names (see `machine.Machine`); memory is shared with
other fakes through FAKE_STATE. FAKE_TIME_SCALE says how much of the simulated time really
passes (0 by default), FAKE_FAIL what goes wrong (see `faults`), FAKE_SEED which noise.
"""

# ruff: noqa: PTH100, PTH120 -- the path comes first; pathlib would slow every start

from __future__ import annotations

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from fakes import startup_log
from fakes.faults import Faults
from fakes.flags import CommandLine, Parser, UsageError, config_words, help_text
from fakes.machine_file import read_machine, shown_devices
from fakes.placement import buffer_name
from fakes.serving import Serving


class Server:
    """One run of the program: answers questions itself, leaves serving to `Serving`."""

    def __init__(self, argv: list[str]) -> None:
        self.machine, self.state = read_machine()
        self.traits = self.machine.runtime
        # Faults that ask for a launch or parameters are known only later.
        self.faults = Faults.collect(os.environ.get("FAKE_FAIL", ""), (), 0, {})
        rejected = self.faults.get("reject-flag")
        self.parser = Parser(
            help_text(self.traits),
            lambda line: [self.machine.devices[i].name for i in self.shown(line)],
            lambda line: ["CPU", *(buffer_name(self.machine, i) for i in self.shown(line))],
            (str(rejected.value),) if rejected else (),
        )
        self.argv = argv

    def shown(self, line: CommandLine) -> list[int]:
        """Devices this run sees."""
        missing = self.faults.get("device-missing")
        return shown_devices(self.machine, line, str(missing.value) if missing else "")

    def run(self) -> int:
        """Do what the command line asks."""
        config, words = config_words(os.environ)
        if config:
            os.write(2, f"using config file: {config}\n".encode())
        for question in ("-h", "--help", "--usage", "--version"):
            if question in self.argv:
                return self.answer(question)
        try:
            line = self.parser.parse([*words, *self.argv], os.environ)
        except UsageError as error:
            os.write(1, error.before.encode())
            os.write(2, str(error).encode())
            return 1
        if "--list-devices" in line.other:
            return self.list_devices(line)
        if "--model" not in line.other:
            os.write(2, b"fake llama-server: router mode is not simulated, give -m\n")
            return 1
        return Serving(self.machine, self.state, self.argv, line).run()

    def answer(self, question: str) -> int:
        """Help or version."""
        if question == "--version":
            version, build, commit = startup_log.VERSIONS[self.traits.log_format]
            os.write(
                2,
                f"version: {version} (build {build}, commit {commit})\n"
                "built with GNU 13.3.0 for Linux x86_64\n".encode(),
            )
        else:
            os.write(1, help_text(self.traits).encode())
        return 0

    def list_devices(self, line: CommandLine) -> int:
        """Names and memory of the devices."""
        if self.faults.get("devices-hang"):
            time.sleep(3600)
        with self.state.edit() as data:
            others, _ = self.state.others(data)
        free = [
            device.total_mib - device.reserve_mib - used
            for device, used in zip(self.machine.devices, others, strict=True)
        ]
        rows = startup_log.device_rows(self.machine, self.shown(line), free)
        text = "".join(f"  {row}\n" for row in rows) or "  (none)\n"
        shown = [self.machine.devices[i] for i in self.shown(line)]
        os.write(2, "\n".join([*startup_log.capability_lines(shown), ""]).encode())
        os.write(1, f"Available devices:\n{text}".encode())
        return 0


if __name__ == "__main__":
    os._exit(Server(sys.argv[1:]).run())
