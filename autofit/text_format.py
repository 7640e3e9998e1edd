"""The format of numbers, settings and foreign text, the same in all outputs."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

UNKNOWN = "unknown"
# A report has megabytes of other characters.
_SUSPECT = re.compile(r"[^\n\x20-\x7e]")

# The metrics as they are called in sentences.
METRIC_WORDS = {
    "request_s": "seconds per request",
    "pp": "prompt tokens per second",
    "tg": "generated tokens per second",
    "ttft": "seconds to the first token",
    "pp_per_s": "prompt tokens per second",
    "tg_per_s": "generated tokens per second",
    "ttft_s": "seconds to the first token",
}


def one_line(text: object) -> str:
    """Return a text on one line, without control characters that a terminal would execute.

    Invalid Unicode and characters that reorder text become escapes.
    """
    shown = []
    for character in str(text):
        kind = unicodedata.category(character)
        if character in "\t\r\n\x0b\x0c\u2028\u2029":
            shown.append(" ")
        elif kind in ("Cc", "Cs", "Cf", "Co", "Cn"):
            shown.append(f"\\u{ord(character):04x}")
        else:
            shown.append(character)
    return "".join(shown)


def without_control(text: str) -> str:
    """Return a text without characters that a terminal would execute.

    Line breaks and the raw bytes of paths stay.
    """
    return _SUSPECT.sub(_without_effect, text)


def _without_effect(found: re.Match[str]) -> str:
    character = found[0]
    is_kept = character.isprintable() or unicodedata.category(character) == "Cs"
    return character if is_kept else one_line(character)


def shown_path(path: object) -> str:
    """Return a path as a user would type it: relative if it is below the working directory."""
    full = Path(str(path))
    try:
        is_below = full.is_absolute() and full.is_relative_to(Path.cwd())
        return one_line(full.relative_to(Path.cwd()) if is_below else full)
    except OSError:  # the working directory was removed
        return one_line(full)


def mib(value: float | None) -> str:
    """Format an amount of memory: in MiB below 10 GiB, in GiB above."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f} MiB" if abs(value) < 10 * 1024 else f"{value / 1024:,.1f} GiB"


def duration(seconds: float | None) -> str:
    """Format a duration: `0.4 s`, `12 s`, `3 min 20 s`, `1 h 05 min`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 9.95:  # noqa: PLR2004 - shown with a decimal below that
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:  # noqa: PLR2004
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:  # noqa: PLR2004
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def number(value: float | None) -> str:
    """Format a measured number with three significant digits."""
    if value is None:
        return UNKNOWN
    if abs(value) >= 100:  # noqa: PLR2004 - three digits are before the point
        return f"{value:,.0f}"
    return f"{value:.3g}"


def estimate(data: Mapping[str, Any] | None) -> str:
    """Format a median with its interval and the number of its launches."""
    if not data or data.get("median") is None:
        return UNKNOWN
    if data.get("low") is None or data.get("high") is None:
        interval = "no interval"
    else:
        interval = f"{number(data['low'])} to {number(data['high'])}"
    count = f", n = {data['n']}" if data.get("n") else ""
    return f"{number(data['median'])} ({interval}{count})"


def as_fast(
    ratio: float, low: float | None = None, high: float | None = None, *, other: str = ""
) -> str:
    """Format a speed ratio, such as `1.80x as fast as A (95% interval 1.73 to 1.88)`."""
    text = f"{_factor(ratio)}x as fast" + (f" as {other}" if other else "")
    if low is None or high is None:
        return text
    return f"{text} (95% interval {_factor(low)} to {_factor(high)})"


def times_text(ratio: float, low: float | None = None, high: float | None = None) -> str:
    """Format a speed ratio for a cell of a table, such as `1.80x (1.73 to 1.88)`."""
    interval = "" if low is None or high is None else f" ({_factor(low)} to {_factor(high)})"
    return f"{_factor(ratio)}x{interval}"


def _factor(value: float) -> str:
    return f"{value:.2f}" if 0.1 <= value < 10 else number(value)  # noqa: PLR2004


def speedup_text(gain: Mapping[str, Any] | None, *, tie: bool) -> str:
    """Return the winner's speedup over the baseline, and how certain it is.

    `gain` is the speedup in a result: `median`, `low` and `high`, and `n`, the number of rounds.
    The first three are 1 if the baseline itself won.
    """
    if gain is None or gain.get("median") is None:
        return "Speedup unknown: not measured against the baseline"
    ratio, rounds = gain["median"], gain.get("n")
    low, high = gain.get("low"), gain.get("high")
    if ratio == low == high == 1.0:
        return f"The baseline is the {'fastest found' if rounds else 'only one to recommend'}"
    if tie:
        return f"Equally fast within the noise: {as_fast(ratio, low, high)}"
    if is_undecided(gain):
        after = f" after {rounds} round{'s' * (rounds != 1)}" if rounds else ""
        if not rounds and low is None:
            return f"Not confirmed in rounds: {as_fast(ratio)}"
        if low is None or high is None:
            return f"Not decided{after} of at least 3: {as_fast(ratio)}"
        return f"Not decided{after}: {_factor(low)} to {_factor(high)} times as fast"
    return as_fast(ratio, low, high)


def is_undecided(gain: Mapping[str, Any] | None) -> bool:
    """Return whether a measured speedup may also be a loss."""
    if not gain or gain.get("median") is None:
        return False
    low, high = gain.get("low"), gain.get("high")
    if low is None or high is None:
        return True
    return low <= 1.0 <= high and not gain["median"] == low == high


def headroom(free_mib: Mapping[str, float | None]) -> str:
    """Format the free memory of each device at the peak."""
    shown = [f"{one_line(name)} {mib(value)}" for name, value in free_mib.items()]
    return ", ".join(shown) or UNKNOWN


def params_line(params: Mapping[str, Any]) -> str:
    """Format params on one line, as `name=value`."""
    return " ".join(one_line(f"{name}={param(value)}") for name, value in params.items())


def param(value: object) -> str:
    """Format a param's value as a user would type it."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
