"""Numbers and foreign text as people read them, in every output alike."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

UNKNOWN = "unknown"

# Of the objective, for sentences: what a user would call it.
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
    """The text on one line, without control characters that a terminal would obey.

    Bytes that are no Unicode and characters that reorder text are shown as escapes.
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


def mib(value: float | None) -> str:
    """An amount of memory: MiB below 10 GiB, GiB above."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f} MiB" if abs(value) < 10 * 1024 else f"{value / 1024:,.1f} GiB"


def duration(seconds: float | None) -> str:
    """A span of time: `0.4 s`, `12 s`, `3 min 20 s`, `1 h 05 min`."""
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
    """A measured number with three significant digits."""
    if value is None:
        return UNKNOWN
    if abs(value) >= 100:  # noqa: PLR2004 - three digits are before the point
        return f"{value:,.0f}"
    return f"{value:.3g}"


def estimate(data: Mapping[str, Any] | None) -> str:
    """A median with its interval, and how many launches stand behind it."""
    if not data or data.get("median") is None:
        return UNKNOWN
    if data.get("low") is None or data.get("high") is None:
        interval = "no interval"
    else:
        interval = f"{number(data['low'])} to {number(data['high'])}"
    count = f", n = {data['n']}" if data.get("n") else ""
    return f"{number(data['median'])} ({interval}{count})"


def speedup(ratio: float) -> str:
    """A gain in words, to be followed by what it is against: `25% faster than`."""
    percent = (ratio - 1) * 100
    if abs(percent) >= 150:  # noqa: PLR2004 - a factor reads better then
        return f"{number(float(f'{ratio:.2g}'))} times as fast as"
    return f"{abs(percent):.3g}% {'faster' if percent >= 0 else 'slower'} than"


def as_fast(
    ratio: float, low: float | None = None, high: float | None = None, *, other: str = ""
) -> str:
    """Return how fast one side is: `1.80x as fast as A (95% interval 1.73 to 1.88)`."""
    text = f"{_factor(ratio)}x as fast" + (f" as {other}" if other else "")
    if low is None or high is None:
        return text
    return f"{text} (95% interval {_factor(low)} to {_factor(high)})"


def _factor(value: float) -> str:
    return f"{value:.2f}" if 0.1 <= value < 10 else number(value)  # noqa: PLR2004


def gain_sentence(gain: Mapping[str, Any] | None, *, tie: bool) -> str:
    """What the winner gains over the baseline, and how sure that is."""
    if gain is None or gain.get("median") is None:
        return "gain unknown: not measured against the baseline"
    low, high = gain.get("low"), gain.get("high")
    interval = ""
    if low is not None and high is not None:
        interval = f" (interval {number(low)} to {number(high)} times its speed)"
    if gain["median"] == low == high == 1.0:
        if not gain.get("n"):
            return "the baseline as it is: nothing else was confirmed against it"
        return "the baseline itself is the best found"
    if tie:
        return f"a tie with the baseline: {gain['median']:.3g} times its speed{interval}"
    sentence = f"{speedup(gain['median'])} the baseline{interval}"
    if low is None or high is None:
        rounds = gain.get("n", 0)
        return f"undecided: {sentence} after {rounds} of at least 3 rounds"
    if low <= 1.0 <= high:
        return f"no gain shown: {sentence}; more rounds might tell"
    return sentence


def headroom(free_mib: Mapping[str, float | None]) -> str:
    """Free memory at the peak, by device."""
    shown = [f"{one_line(name)} {mib(value)}" for name, value in free_mib.items()]
    return ", ".join(shown) or UNKNOWN


def params_line(params: Mapping[str, Any]) -> str:
    """Params on one line, as `name=value`."""
    return " ".join(one_line(f"{name}={param(value)}") for name, value in params.items())


def param(value: object) -> str:
    """One param's value as it would be typed."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
