"""Mutates real inputs of every kind that autofit reads from outside, and prints what breaks.

A find is an internal error, a control character in a message, an input that takes longer than
5 s of the processor, or one that takes more than 300 MB. Each is printed with the options that
repeat it.

Run it as `PYTHONPATH=.:tests python benchmarks/fuzz_inputs.py [--minutes M] [--seed N]
[--target NAME] [--only INPUT] [--finds FOLDER]`.
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from fuzz_targets import Target, allowed_errors, iterate_names, make_targets

_LONGEST_S = 5.0
_LONGEST_WAIT_S = 60.0
_MOST_MIB = 300
_WORDS = (
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"-1",
    b"0",
    b"9223372036854775807",
    b"18446744073709551616",
    b"9" * 5000,
    b"1" * 400,
    b"0.1e-400",
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\r\n",
    b"\n",
    b"\t",
    b"\xe2\x80\xae",
    b"\x1b[2J",
    b"\xc2\x85",
    b"\xed\xa0\x80",
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"'",
    b"`",
    b"$",
    b"${x",
    b"$(",
    b"\\",
    b"%",
    b"%s",
    b"&a ",
    b"*a",
    b"<<: *a",
    b"!!python/object:x ",
    b"!!int ",
    b"? ",
    b"- ",
    b": ",
    b"|",
    b"#",
    b"=",
    b";",
    b",",
    b"--",
    b"-",
    b"(",
    b")",
    b"true",
    b"null",
    b"[]",
    b"{}",
    b"[" * 3000,
    b'{"a":' * 3000,
    b"x" * 70_000,
    b"a: " * 50,
    b"\xc2\xb2",
    b"\xd9\xa3",
    b"1_000",
    b"0x10",
    b"1.2.3",
    b"-.5",
    b".",
    b"..",
    b"/",
    b"CUDA0",
    b"CPU",
    b"out of memory",
    b"MiB",
)
_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    -(2**63),
    10**30,
    10**400,
    0.5,
    1e308,
    -1e308,
    1e-320,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\0",
    "\x1b[2J",
    "\u202e",
    "\ud800",
    "9" * 5000,
    "x" * 70_000,
    "/dev/zero",
    "/",
    "..",
    [],
    {},
    [[]],
    [None],
    [1, "x"],
    {"a": 1},
    {"": {}},
    [0] * 2000,
    "1",
    "nan",
    {"median": None},
    {"median": 1},
    {"kind": "x"},
    {"kind": "completed"},
    "CUDA0",
    ["-m", "x"],
)


class _TooLongError(BaseException):
    """An input that takes too long; no handler of autofit catches it."""


@dataclass(frozen=True)
class Find:
    """An input that broke its target."""

    target: str
    number: int
    what: str
    trace: str

    @property
    def place(self) -> str:
        """The last line of autofit's own code, which finds of one fault share."""
        lines = [
            line for line in self.trace.splitlines() if "/autofit/" in line and "line " in line
        ]
        return lines[-1].strip() if lines else self.what[:80]


def mutate(seeds: list[bytes], choose: random.Random) -> bytes:
    """Return one of the seeds, changed in one to eight places."""
    data = choose.choice(seeds)
    if choose.random() < 0.6:
        changed = _mutate_json(data, choose)
        if changed is not None:
            return changed
    for _ in range(choose.choice((1, 1, 1, 2, 4, 8))):
        data = _mutate_bytes(data, choose, seeds)
    return data


def _mutate_bytes(data: bytes, choose: random.Random, seeds: list[bytes]) -> bytes:
    start = choose.randrange(len(data) + 1)
    end = min(len(data), start + choose.choice((0, 1, 1, 2, 4, 8, 40, 400)))
    kind = choose.randrange(9)
    if kind == 0:
        return data[:start] + data[end:]
    if kind == 1:
        return data[:start] + choose.choice(_WORDS) + data[end:]
    if kind == 2:
        return data[:start] + data[start:end] * choose.choice((2, 3, 50)) + data[end:]
    if kind == 3:
        return data[:start] + bytes(choose.randrange(256) for _ in range(end - start)) + data[end:]
    if kind == 4:
        other = choose.choice(seeds)
        place = choose.randrange(len(other) + 1)
        return data[:start] + other[place : place + 400] + data[end:]
    if kind == 5:
        return data[:start]
    if kind == 6 and data:
        start = min(start, len(data) - 1)
        return data[:start] + bytes([data[start] ^ (1 << choose.randrange(8))]) + data[start + 1 :]
    lines = data.split(b"\n")
    place = choose.randrange(len(lines))
    if kind == 7:
        lines[place] = choose.choice(_WORDS) + lines[place]
    else:
        lines[place : place + 1] = [lines[place]] * choose.choice((0, 2, 100))
    return b"\n".join(lines)


def _mutate_json(data: bytes, choose: random.Random) -> bytes | None:
    """Return a JSON document with other values or keys, or None if the data is another format."""
    try:
        document = [json.loads(data)]
    except ValueError:
        return None
    for _ in range(choose.choice((1, 1, 2, 5))):
        places = list(_places(document))
        if not places:
            break
        outer, key = choose.choice(places)
        kind = choose.randrange(10)
        if kind == 0 and outer is not document:
            del outer[key]
        elif kind == 1:
            other, name = choose.choice(places)
            outer[key] = copy.deepcopy(other[name])
        elif kind == 2:
            outer[key] = [outer[key]]
        elif kind == 3 and isinstance(outer, dict):
            outer[choose.choice(("x", "", "\x1b", "schema"))] = copy.deepcopy(outer[key])
        else:
            outer[key] = copy.deepcopy(choose.choice(_VALUES))
    return json.dumps(document[0]).encode()


def _places(outer: Any) -> Iterator[tuple[Any, Any]]:
    for key in outer if isinstance(outer, dict) else range(len(outer)):
        yield outer, key
        if isinstance(outer[key], dict | list):
            yield from _places(outer[key])


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise _TooLongError


def try_input(
    name: str,
    target: Target,
    seeds: list[bytes],
    path: Path,
    *,
    choose: random.Random,
    number: int,
) -> Find | None:
    """Give one mutated input to its target; return what broke, or None."""
    path.write_bytes(mutate(seeds, choose))
    before_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    # A busy machine must be no find: the short limit is for the processor's time.
    signal.signal(signal.SIGALRM, _stop)
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_REAL, _LONGEST_WAIT_S)
    signal.setitimer(signal.ITIMER_PROF, _LONGEST_S)
    try:
        target.use(path, choose)
    except allowed_errors():
        pass
    except _TooLongError:
        return Find(name, number, f"longer than {_LONGEST_S} s", traceback.format_exc())
    except Exception as error:  # noqa: BLE001 - every other error is a find
        return Find(name, number, f"{type(error).__name__}: {error}"[:300], traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
    used_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mib
    return Find(name, number, f"{used_mib:.0f} MiB", "") if used_mib > _MOST_MIB else None


def fuzz(
    *,
    seconds: float,
    seed: int,
    only_target: str | None = None,
    only_input: int | None = None,
    inputs: int | None = None,
    finds_folder: Path | None = None,
) -> tuple[list[Find], collections.Counter[str]]:
    """Try inputs of all targets in turn until the time is over; return finds and numbers."""
    counts: collections.Counter[str] = collections.Counter()
    found: dict[tuple[str, str], Find] = {}
    with tempfile.TemporaryDirectory(prefix="autofit-fuzz-") as place:
        folder = Path(place)
        tempfile.tempdir = place  # autofit writes its fault files there
        targets = make_targets(folder)
        targets = {n: t for n, t in targets.items() if only_target in (None, n)}
        seeds = {name: target.seeds() for name, target in targets.items()}
        seeds = {name: known or [b""] for name, known in seeds.items()}
        deadline = time.monotonic() + seconds
        for name in iterate_names(targets):
            if time.monotonic() > deadline or (inputs is not None and counts.total() >= inputs):
                break
            counts[name] += 1
            number = counts[name] if only_input is None else only_input
            find = try_input(
                name,
                targets[name],
                seeds[name],
                folder / f"input{targets[name].suffix}",
                choose=random.Random(f"{seed} {name} {number}"),
                number=number,
            )
            if find is not None and (name, find.place) not in found:
                found[name, find.place] = find
                _report(find, seed, folder, targets[name], finds_folder)
            if only_input is not None:
                break
        tempfile.tempdir = None
    return list(found.values()), counts


def _report(find: Find, seed: int, folder: Path, target: Target, finds: Path | None) -> None:
    print(f"FIND {find.target} {find.number}: {find.what}\n  at {find.place}")
    print(f"  again: --seed {seed} --target '{find.target}' --only {find.number}", flush=True)
    source = folder / f"input{target.suffix}"
    if finds is not None:
        finds.mkdir(parents=True, exist_ok=True)
        stem = f"{find.target.replace(' ', '-')}-{seed}-{find.number}"
        (finds / f"{stem}.trace").write_text(f"{find.what}\n{find.trace}")
        if source.exists():
            (finds / f"{stem}{target.suffix}").write_bytes(source.read_bytes())


def main() -> int:
    """Parse the options, fuzz, and print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target")
    parser.add_argument("--only", type=int)
    parser.add_argument("--finds", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("COLUMNS", "100")
    began_s = time.monotonic()
    finds, counts = fuzz(
        seconds=options.minutes * 60,
        seed=options.seed,
        only_target=options.target,
        only_input=options.only,
        finds_folder=options.finds,
    )
    for name, count in counts.items():
        print(f"{name:<12}{count:>8} inputs{sum(one.target == name for one in finds):>5} finds")
    print(f"{counts.total()} inputs in {time.monotonic() - began_s:.0f} s, {len(finds)} finds")
    return 1 if finds else 0


if __name__ == "__main__":
    sys.exit(main())
