"""Writes `docs/screens.md`: every command as it looks on a terminal of 80 columns and 24 lines.

The commands are real; the machine is simulated, and so are the model and its speeds. Longer
output is cut after 24 lines; the last screens of tune, probe, compare and sweep are shown whole.

Run it as `make screens`.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fakes.machine import Device, Host, Machine, Noise
from fakes.machine_fixtures import FakeMachine
from fakes.synthetic_model import ModelShape, build_model

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "screens.md"
COLUMNS, LINES = 80, 24
CARD = Device("CUDA0", "NVIDIA GeForce RTX 3060", total_mib=12288, other_mib=400, link_gb_s=10)
MACHINE = Machine("home", (CARD,), Host(ram_mib=64000, other_mib=2000),
                  noise=Noise(launch_prompt=0.01, launch_decode=0.01))  # fmt: skip
MODEL = build_model(
    ModelShape(layers=48, experts=128, used=8, embd=2048, ff=768, heads=32, kv_heads=4,
               head_dim=128, vocab=32768, context=40960)
)  # fmt: skip
MODEL_NAME = "qwen3, "
HOME = "/home/you"
# The dialect reads the memory of the simulated card. A real card needs no such option.
HIDDEN = " --dialect home.yaml"
SERVE = "llama-server -m qwen3.gguf -ngl 99 -c 16384 -np 1 -fa on --fit off"
SUITE = f"""\
entries:
  - name: qwen3
    mode: remeasure
    model: qwen3.gguf
    runtime: bin/llama-server
    dialect: home.yaml
    preset: {SERVE} --n-cpu-moe 24
    rounds: 4
    answers: false
    boundary: false
    neighbours: false
"""
LOG = next((ROOT / "tests" / "data" / "logs" / "out_of_memory").glob("*.log"))
LAST_SCREEN = "The last screen:"
HEAD = """\
# Screens

Every command as it looks on a terminal of 80 columns and 24 lines; longer output is cut. The
machine, the model and its speeds are simulated. `make screens` writes this page."""
_FRAME = re.compile(r"(?:\x1b\[1A\x1b\[2K|\x1b\[2K\x1b\[1A)+|\r\x1b\[2K")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Capture:
    """The text that a command wrote to a terminal."""

    text: str

    @property
    def lines(self) -> list[str]:
        """The lines without control characters and trailing blanks."""
        plain = _CONTROL.sub("", self.text).replace("\r\n", "\n").replace("\r", "")
        return [line.rstrip() for line in plain.rstrip().split("\n")]

    def last_view(self, phase: str) -> list[str]:
        """Return the live view of a phase with the most lines."""
        frames = [Capture(part).lines for part in _FRAME.split(self.text)]
        views = [
            lines for lines in frames if any(re.match(rf"\d/5 {phase}", one) for one in lines)
        ]
        starts = [next(i for i, line in enumerate(v) if re.match(r"\d/5 ", line)) for v in views]
        shown = [view[start:] for view, start in zip(views, starts, strict=True)]
        return max(shown, key=len, default=[])


class Terminal:
    """A terminal of 80 columns in a folder, whose path the captures do not show."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")},
            "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(folder / ".cache"),
            "XDG_DATA_HOME": str(folder / ".data"),
            "XDG_CONFIG_HOME": str(folder / ".config"),
            "AUTOFIT_LOCK_DIR": str(folder / ".lock"),
            "COLUMNS": str(COLUMNS),
            "LINES": str(LINES),
            "NO_COLOR": "1",
        }

    def run(
        self, command: str, *, term: str = "dumb", stop_at: str = "", limit_s: float = 300
    ) -> Capture:
        """Run a command to its end; press Ctrl-C once its output has `stop_at`."""
        ours, theirs = pty.openpty()
        argv = ["sh", "-c", command]
        shown: list[bytes] = []
        reader = threading.Thread(target=_read_all, args=(ours, shown))
        process = subprocess.Popen(
            argv, cwd=self.folder, env={**self.env, "TERM": term}, stdin=subprocess.DEVNULL,
            stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        reader.start()
        deadline, is_stopped = time.monotonic() + limit_s, not stop_at
        while process.poll() is None and time.monotonic() < deadline:
            if not is_stopped and stop_at in b"".join(shown).decode(errors="replace"):
                os.killpg(process.pid, signal.SIGINT)
                is_stopped = True
            time.sleep(0.02)
        assert process.poll() is not None, f"{command} did not end"
        reader.join(10)
        os.close(ours)
        text = b"".join(shown).decode(errors="replace")
        for path, shown in ((self.folder, HOME), (sys.prefix, f"{HOME}/.venv"), (ROOT, "autofit")):
            text = text.replace(str(path), shown)
        return Capture(text)


def _read_all(descriptor: int, into: list[bytes]) -> None:
    try:
        while data := os.read(descriptor, 4096):
            into.append(data)
    except OSError:
        pass  # the other end was closed


def block(command: str, lines: Sequence[str], *, is_whole: bool = False) -> str:
    """Return a capture as a block of Markdown; unless it is a last screen, it is cut."""
    shown = [*lines]
    if not is_whole and len(shown) > LINES - 1:
        shown = [*shown[: LINES - 2], f"... {len(shown) - LINES + 2} more lines"]
    return "```text\n$ " + command.replace(HIDDEN, "") + "\n" + "\n".join(shown) + "\n```"


def last_screen(lines: Sequence[str], heading: str) -> list[str]:
    """Return the lines from the last one that begins with a heading."""
    start = max(index for index, line in enumerate(lines) if line.startswith(heading))
    return [*lines[start:]]


@dataclass
class Page:
    """The sections of the page, in order."""

    terminal: Terminal
    parts: list[str]

    def section(self, title: str, text: str) -> None:
        """Begin a section."""
        self.parts += [f"## {title}", text]

    def show(self, command: str, text: str = "") -> None:
        """Add a command with its output, after a sentence about it."""
        found = self.terminal.run(command)
        self.parts += [*filter(None, [text]), block(command, found.lines)]

    def run(self, command: str, heading: str, *, stop_at: str = "") -> None:
        """Add a run: its lines, and then its last screen, which begins with a heading."""
        lines = self.terminal.run(command, stop_at=stop_at).lines
        screen = last_screen(lines, heading)
        self.parts += [
            block(command, "\n".join(lines[: len(lines) - len(screen)]).rstrip().split("\n")),
            LAST_SCREEN,
            block(command, screen, is_whole=True),
        ]


def write_page(page: Page) -> None:
    """Run every command and add its output."""
    tune = f"autofit tune qwen3.gguf{HIDDEN} --max-launches 10 --no-answers --yes"
    page.section("Before a tune", "What is here, and what fits.")
    page.show("autofit --help")
    page.show("autofit doctor")
    page.show("autofit plan qwen3.gguf")
    page.section("tune", "While it runs, each launch is one line.")
    page.run(f"{tune} --study results/qwen3", MODEL_NAME)
    view = page.terminal.run(f"{tune} --study results/view", term="xterm").last_view("confirm")
    page.parts += ["On a terminal, these lines follow the launches and change as it runs.",
                   block(f"{tune} --study results/view", view)]  # fmt: skip
    page.parts += ["Ctrl-C in the middle leaves the best so far."]
    page.run(f"{tune} --study results/stopped", MODEL_NAME, stop_at="#6 ")
    page.section("probe, compare and sweep", "They end with such a screen, too.")
    page.run(f"autofit probe qwen3.gguf{HIDDEN} --yes", MODEL_NAME)
    page.run(f"autofit compare a.sh b.sh{HIDDEN}", MODEL_NAME)
    page.terminal.run("autofit sweep nightly.yaml --update-baseline")
    page.run("autofit sweep nightly.yaml", "sweep nightly: 1")
    page.show("autofit models")
    page.section("Studies and presets", "What was measured, and files to start a server from.")
    page.show("autofit studies")
    page.show("autofit show results/qwen3")
    page.show("autofit report results/qwen3 --html report.html")
    page.show("autofit export results/qwen3 --format shell")
    page.show("autofit export results/stopped --format ini", "A tune without a winner is refused.")
    page.show("autofit export results/stopped --unproven --format ini")
    page.show("autofit import a.sh")
    page.section("The other commands", "Each of them has a page or a part of one.")
    page.show("autofit explain server.log")
    page.show("autofit check nightly.yaml")
    page.show("autofit replay turing8gb_qwen36-35b_udq3kxl --seeds 5")
    page.show("autofit synth tiny.gguf --layers 2 --embd 256 --vocab 512")


def main() -> None:
    """Run every command on a simulated machine, and write the page."""
    with tempfile.TemporaryDirectory(prefix="autofit-screens-") as name:
        folder = Path(name)
        fake = FakeMachine(folder, MACHINE)
        (folder / "qwen3.gguf").symlink_to(fake.write_model(MODEL))
        (folder / "bin").mkdir()
        (folder / "bin" / "llama-server").symlink_to(fake.server)
        (folder / "home.yaml").write_text(fake.dialect.read_text())
        for script, layers in (("a.sh", 26), ("b.sh", 24)):
            (folder / script).write_text(f"{SERVE} --n-cpu-moe {layers}\n")
        (folder / "nightly.yaml").write_text(SUITE)
        (folder / "server.log").write_bytes(LOG.read_bytes())
        page = Page(Terminal(folder), [HEAD])
        write_page(page)
    PAGE.write_text("\n\n".join(page.parts) + "\n", encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
