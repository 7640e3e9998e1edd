"""One entry of a YAML file, replaced key by key; every other line stays as it is.

ruamel.yaml tells where each node lies. Its own round trip would keep comments, but not the
indentation of lists nor the line breaks of others' text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from autofit.errors import UsageError
from autofit.presets.formats.yaml_text import indented
from autofit.presets.heading import without_heading

_MARK = re.compile(r"\s*#\s?")
_STEP = 2
# What an entry is to say by key, each as lines of YAML; an empty one takes the key away.
Parts = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry to be put into a file, below the key `top`.

    `parts` makes its settings from the data of the older entry, empty where there is none.
    """

    top: str
    name: str
    key: str
    comments: Sequence[str]
    parts: Callable[[Mapping[str, Any]], Parts]


def merge(text: str, entry: Entry, label: str) -> str:
    """The file's text with the entry in it.

    Raises:
        UsageError: the file cannot be read, or not changed without touching other parts.
    """
    root = _root(text, label)
    try:
        return _merged(text, root, entry, label)
    except RecursionError as error:
        raise _refusal(f"{label}: an anchor holds itself, or it is nested too deeply") from error


def _merged(text: str, root: MappingNode | None, entry: Entry, label: str) -> str:
    top = _child(root, entry.top)
    old = _child(top, entry.name) if isinstance(top, MappingNode) else None
    lines = text.split("\n")
    end = "\r" if lines[0].endswith("\r") else ""
    if isinstance(top, MappingNode) and isinstance(old, MappingNode):
        edits = list(_replacing(text, top, old, entry, label))
    else:
        edits = [_adding(text, root, top, entry, label)]
    for start, stop, new in sorted(edits, key=lambda edit: edit[:2], reverse=True):
        lines[start:stop] = [line + end for line in new]
    merged = "\n".join(lines)
    _check(root, _root(merged, label), entry, label)
    return merged


def entries(text: str, top: str, label: str) -> list[str]:
    """The names of the entries below a key.

    Raises:
        UsageError: the file cannot be read.
    """
    node = _child(_root(text, label), top)
    return [str(key.value) for key, _ in node.value] if isinstance(node, MappingNode) else []


def _root(text: str, label: str) -> MappingNode | None:
    try:
        root = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise _refusal(f"{label}:{line}: {error.problem or error.context}") from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise _refusal(f"{label}: {str(error).splitlines()[0]}") from error
    if root is None or (isinstance(root, ScalarNode) and not root.value):
        return None
    if not isinstance(root, MappingNode):
        raise _refusal(f"{label} is no mapping")
    return root


def _refusal(fault: str) -> UsageError:
    return UsageError(f"cannot merge: {fault}", "correct the file, then merge again")


def _child(node: Node | None, name: str) -> Node | None:
    pairs = node.value if isinstance(node, MappingNode) else ()
    return next((value for key, value in pairs if key.value == name), None)


def _first_line(node: MappingNode) -> int:
    return int(node.value[0][0].start_mark.line) if node.value else -1


def _key(node: MappingNode, name: str) -> Node:
    key: Node = next(key for key, _ in node.value if key.value == name)
    return key


def _replacing(
    text: str, top: MappingNode, old: MappingNode, entry: Entry, label: str
) -> Iterator[tuple[int, int, list[str]]]:
    """The edits (first line, line after, new lines) that renew an entry."""
    name = _key(top, entry.name)
    # An alias stands for a mapping that begins elsewhere.
    if old.flow_style or top.flow_style or _first_line(old) <= name.start_mark.line:
        raise _by_hand(label, name, f"the entry '{entry.name}' is not written as a block")
    lines = text.split("\n")
    above = lines[: name.start_mark.line]
    kept = without_heading(above, _MARK)
    column = name.start_mark.column
    yield len(above), len(above), indented(entry.comments, column)
    yield from _gone(above, kept)
    inner = old.value[0][0].start_mark.column
    parts = entry.parts(_plain(old))
    seen = set()
    for key, value in old.value:
        if key.value not in parts:
            continue
        seen.add(key.value)
        new = indented(parts[key.value], inner)
        first, last = key.start_mark.line, _last_line(text, key, value)
        behind = lines[last][_end(text, key, value) - _line_start(text, last) :].strip()
        comment = indented([behind], inner) if behind.startswith("#") else []
        yield first, last + 1, [*comment, *new]
    after = _last_line(text, *old.value[-1]) + 1
    missing = [line for name, part in parts.items() if name not in seen for line in part]
    yield after, after, indented(missing, inner)


def _gone(above: Sequence[str], kept: Sequence[str]) -> Iterator[tuple[int, int, list[str]]]:
    """The edits that take away the lines that are not kept."""
    place = 0
    for number, line in enumerate(above):
        if place < len(kept) and kept[place] == line and len(kept) - place <= len(above) - number:
            place += 1
        else:
            yield number, number + 1, []


def _adding(
    text: str, root: MappingNode | None, top: Node | None, entry: Entry, label: str
) -> tuple[int, int, list[str]]:
    """The edit that adds an entry that is not there."""
    lines = text.split("\n")
    column = _STEP
    if root is None or top is None:
        if root is not None and root.flow_style:
            raise _by_hand(label, root, "the file is written with braces")
        place = len(lines)
        while place and not lines[place - 1].strip():
            place -= 1
        return (
            place,
            len(lines),
            [*([""] if place else []), f"{entry.top}:", *_new(entry, column), ""],
        )
    key = next(key for key, _ in root.value if key.value == entry.top)
    if isinstance(top, MappingNode) and top.value and not top.flow_style:
        if any(child.value == entry.name for child, _ in top.value):
            raise _by_hand(label, key, f"the entry '{entry.name}' is not written as a block")
        place = _last_line(text, *top.value[-1]) + 1
        return place, place, ["", *_new(entry, top.value[0][0].start_mark.column)]
    if isinstance(top, ScalarNode) and not top.value:
        place = key.start_mark.line + 1
        return place, place, _new(entry, key.start_mark.column + column)
    raise _by_hand(label, key, f"'{entry.top}' is not written as a block")


def _new(entry: Entry, column: int) -> list[str]:
    parts = entry.parts({})
    inner = [line for part in parts.values() for line in indented(part, _STEP)]
    return indented([*entry.comments, f"{entry.key}:", *inner], column)


def _by_hand(label: str, node: Node, why: str) -> UsageError:
    return _refusal(f"{label}:{node.start_mark.line + 1}: {why}")


def _end(text: str, key: Node, value: Node) -> int:
    """Where a pair's text ends, without the comments and blank lines that follow it."""
    if value.start_mark.index < key.start_mark.index:  # an alias: its text is elsewhere
        line = text.find("\n", key.end_mark.index)
        return len(text) if line < 0 else line
    if isinstance(value, ScalarNode):
        if value.style in ("|", ">"):
            return len(text[: value.end_mark.index].rstrip())
        end: int = max(key.end_mark.index, value.end_mark.index)
        return end if value.end_mark.index > value.start_mark.index else key.end_mark.index + 1
    assert isinstance(value, MappingNode | SequenceNode)  # noqa: S101 - there is no other
    if value.flow_style or not value.value:
        return int(value.end_mark.index)
    last = value.value[-1]
    return _end(text, *(last if isinstance(value, MappingNode) else (last, last)))


def _last_line(text: str, key: Node, value: Node) -> int:
    return text.count("\n", 0, _end(text, key, value))


def _line_start(text: str, line: int) -> int:
    place = 0
    for _ in range(line):
        place = text.index("\n", place) + 1
    return place


def _plain(node: Node) -> Any:  # noqa: ANN401 - YAML can be anything
    """A node's data with every scalar as text; None for an empty one."""
    if isinstance(node, MappingNode):
        return {str(key.value): _plain(value) for key, value in node.value}
    if isinstance(node, SequenceNode):
        return [_plain(value) for value in node.value]
    return None if str(node.tag).endswith(":null") else node.value


def _check(
    before: MappingNode | None, after: MappingNode | None, entry: Entry, label: str
) -> None:
    """See that nothing but the entry has changed."""
    old, new = _shape(before, entry), _shape(after, entry)
    if old != new:
        raise _refusal(f"{label}: other parts hang together with the entry '{entry.name}'")


def _shape(root: MappingNode | None, entry: Entry) -> Any:  # noqa: ANN401
    pairs = root.value if root is not None else []
    shapes = {
        str(key.value): [
            (str(name.value), _tagged(value))
            for name, value in node.value
            if name.value != entry.name
        ]
        if key.value == entry.top and isinstance(node, MappingNode)
        else _tagged(node)
        for key, node in pairs
    }
    if not shapes.get(entry.top) or isinstance(_child(root, entry.top), ScalarNode):
        shapes.pop(entry.top, None)
    return shapes


def _tagged(node: Node) -> Any:  # noqa: ANN401
    tag = str(node.tag)
    if isinstance(node, MappingNode):
        return tag, [(_tagged(key), _tagged(value)) for key, value in node.value]
    if isinstance(node, SequenceNode):
        return tag, [_tagged(value) for value in node.value]
    return tag, node.value
