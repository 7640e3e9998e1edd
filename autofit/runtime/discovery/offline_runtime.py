"""A runtime on paper: a current llama-server as its help describes it, where none is there.

For planning only: it says how settings are spelled, and can be launched by nobody.
"""

from __future__ import annotations

from pathlib import Path

from autofit.runtime.dialect.dialect_file import load_dialect
from autofit.runtime.discovery.found_runtime import Runtime, Version
from autofit.runtime.discovery.help_text import parse_help

_HELP = Path(__file__).parents[1] / "embedded/embedded_help.txt"


def offline_runtime(dialect_name: str = "llama_server") -> Runtime:
    """The dialect with every flag that a current llama-server lists, and no devices.

    Raises:
        UsageError: there is no such dialect.
    """
    dialect = load_dialect(dialect_name)
    program = Path(dialect.program.names[0] if dialect.program.names else "llama-server")
    return Runtime(
        dialect=dialect,
        program=program,
        command=(str(program),),
        help=parse_help(_HELP.read_text(encoding="utf-8")),
        version=Version(""),
        fingerprint="",
        devices=(),
    )
