"""Small programs that imitate a runtime, and runtimes made from real help texts."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from autofit.runtime.dialect.dialect_file import load_dialect
from autofit.runtime.discovery.found_runtime import Runtime, Version
from autofit.runtime.discovery.help_text import parse_help

HELP = Path(__file__).parent.parent / "data" / "help"
SERVER = "llama-server-b11434"
FORK = "llama-server-prefetch-fork-b9862"
IK = "ik-llama-server"
VERSION = "version: 0.6.0 (build 11434, commit 1a2b3c4)"


def write_script(path: Path, body: str) -> Path:
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def write_program(
    folder: Path, *, help_name: str = SERVER, more_help: str = "", version: str = VERSION
) -> Path:
    """Write a llama-server that prints a real help text, and a version."""
    text = (HELP / f"{help_name}.txt").read_text(encoding="utf-8") + more_help
    help_path = folder / "help.txt"
    folder.mkdir(parents=True, exist_ok=True)
    help_path.write_text(text)
    return write_script(
        folder / "llama-server",
        f'echo "$@" >> "{folder}/calls"\n'
        f'case "$1" in\n--help) cat "{help_path}";;\n'
        f'--version) echo "{version}";;\n*) exit 1;;\nesac',
    )


def read_calls(program: Path) -> list[str]:
    """Return the arguments of each run of such a program."""
    calls = program.parent / "calls"
    return calls.read_text().splitlines() if calls.exists() else []


def runtime_of(
    dialect: str, help_name: str, *, more_help: str = "", texts: Collection[str] = ()
) -> Runtime:
    """Return a runtime with a real help text and the texts that its libraries would contain."""
    known = load_dialect(dialect)
    text = (HELP / f"{help_name}.txt").read_text(encoding="utf-8") + more_help
    spellings = [s for parameter in known.parameters.values() for s in parameter.spellings]
    return Runtime(
        dialect=known,
        program=Path("/opt/llama-server"),
        command=("/opt/llama-server",),
        help=parse_help(text),
        version=Version(VERSION),
        fingerprint="sample",
        texts=frozenset(
            (s.text or s.env, s.files) for s in spellings if s.env and (s.text or s.env) in texts
        ),
    )
