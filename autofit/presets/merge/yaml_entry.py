"""One entry of a YAML file, replaced key by key; every other line stays as it is.

ruamel.yaml says where each node begins and ends. Its own round trip would keep comments, but not
the indentation of lists and the line breaks of other people's text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from autofit.errors import UsageError
from autofit.presets.formats.yaml_text import indented
from autofit.presets.preset_heading import without_heading

_COMMENT = re.compile(r"\s*#\s?")
_STEP = 2
# The settings of an entry by key, each as lines of YAML; no lines remove the key.
Parts = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlEntry:
    """An entry to be put into a file, below the key `top`.

    `key` is its name as written in YAML. `parts` gets the data of the older entry, empty without
    one, and returns the settings.
    """

    top: str
    name: str
    key: str
    comments: Sequence[str]
    parts: Callable[[Mapping[str, Any]], Parts]


def merge_entry(text: str, entry: YamlEntry, label: str) -> str:
    """Return the file's text with the entry in it.

    Raises:
        UsageError: the file cannot be read, or not be changed without changing other parts.
    """
    root = _root(text, label)
    top = _child(root, entry.top)
    old = _child(top, entry.name)
    try:
        if isinstance(top, MappingNode) and isinstance(old, MappingNode):
            lines = _replaced(text, top, old, entry, label)
        else:
            lines = _added(text, root, top, entry, label)
        merged = "\n".join(lines)
        if _others(root, entry) != _others(_root(merged, label), entry):
            raise _refusal(f"{label}: other parts depend on the entry '{entry.name}'")
    except RecursionError as error:
        fault = "an anchor contains itself, or it is nested too deeply"
        raise _refusal(f"{label}: {fault}") from error
    return merged


def entry_names(top: str, text: str, label: str) -> list[str]:
    """Return the names of the entries below the key `top`.

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
        raise _refusal(f"{label} is not a mapping")
    return root


def _refusal(fault: str) -> UsageError:
    return UsageError(f"cannot merge: {fault}", "correct the file, then merge again")


def _not_a_block(label: str, node: Node, name: str) -> UsageError:
    return _refusal(f"{label}:{node.start_mark.line + 1}: '{name}' must be a block of lines")


def _child(node: Node | None, name: str) -> Node | None:
    pairs = node.value if isinstance(node, MappingNode) else ()
    return next((value for key, value in pairs if key.value == name), None)


def _key_node(node: MappingNode, name: str) -> Node:
    key: Node = next(key for key, _ in node.value if key.value == name)
    return key


def _line_end(lines: Sequence[str]) -> str:
    return "\r" if lines[0].endswith("\r") else ""


def _replaced(
    text: str, top: MappingNode, old: MappingNode, entry: YamlEntry, label: str
) -> list[str]:
    """Return the file's lines with an existing entry replaced key by key."""
    name = _key_node(top, entry.name)
    first_key = old.value[0][0] if old.value else None
    # An alias refers to a mapping that begins elsewhere.
    is_elsewhere = first_key is None or first_key.start_mark.line <= name.start_mark.line
    if old.flow_style or top.flow_style or is_elsewhere:
        raise _not_a_block(label, name, entry.name)
    lines = text.split("\n")
    end = _line_end(lines)
    column = old.value[0][0].start_mark.column
    parts = dict(entry.parts(_plain_data(old)))
    merged: list[str] = []
    next_line = name.start_mark.line
    for key, value in old.value:
        if key.value not in parts:
            continue
        last = _last_line(text, key, value)
        after_value = text[_end(text, key, value) :].partition("\n")[0].strip()
        comment = [after_value] if after_value.startswith("#") else []
        merged += lines[next_line : key.start_mark.line]
        merged += [line + end for line in indented([*comment, *parts.pop(key.value)], column)]
        next_line = last + 1
    after = _last_line(text, *old.value[-1]) + 1
    missing = indented([line for part in parts.values() for line in part], column)
    heading = indented(entry.comments, name.start_mark.column)
    return [
        *without_heading(lines[: name.start_mark.line], _COMMENT),
        *(line + end for line in heading),
        *merged,
        *lines[next_line:after],
        *(line + end for line in missing),
        *lines[after:],
    ]


def _added(
    text: str, root: MappingNode | None, top: Node | None, entry: YamlEntry, label: str
) -> list[str]:
    """Return the file's lines with a new entry."""
    lines = text.split("\n")
    end = _line_end(lines)
    column = _STEP
    before: list[str] = []
    if root is None or top is None:
        if root is not None and root.flow_style:
            fault = "the file is written with braces"
            raise _refusal(f"{label}:{root.start_mark.line + 1}: {fault}")
        while lines and not lines[-1].strip():
            lines.pop()
        place = len(lines)
        before = [*([""] if lines else []), f"{entry.top}:"]
        lines.append("")
    else:
        key = _key_node(root, entry.top)
        if isinstance(top, MappingNode) and top.value and not top.flow_style:
            if any(child.value == entry.name for child, _ in top.value):
                raise _not_a_block(label, key, entry.name)
            place = _last_line(text, *top.value[-1]) + 1
            column = top.value[0][0].start_mark.column
            before = [""]
        elif isinstance(top, ScalarNode) and not top.value:
            place = key.start_mark.line + 1
            column += key.start_mark.column
        else:
            raise _not_a_block(label, key, entry.top)
    inner = [line for part in entry.parts({}).values() for line in indented(part, _STEP)]
    new = [*before, *indented([*entry.comments, f"{entry.key}:", *inner], column)]
    return [*lines[:place], *(line + end for line in new), *lines[place:]]


def _end(text: str, key: Node, value: Node) -> int:
    """Return the end of a pair's text, without the comments and blank lines after it."""
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


def _plain_data(node: Node) -> Any:  # noqa: ANN401 - YAML can be anything
    """Return a node's data with every scalar as text, and None for an empty one."""
    if isinstance(node, MappingNode):
        return {str(key.value): _plain_data(value) for key, value in node.value}
    if isinstance(node, SequenceNode):
        return [_plain_data(value) for value in node.value]
    return None if str(node.tag).endswith(":null") else node.value


def _others(root: MappingNode | None, entry: YamlEntry) -> Any:  # noqa: ANN401
    """Return all data of a file except the entry, to be compared before and after a merge."""
    data: dict[str, Any] = {}
    for key, node in root.value if root is not None else ():
        if key.value == entry.top and isinstance(node, MappingNode):
            data[str(key.value)] = [
                (str(name.value), _tagged_data(value))
                for name, value in node.value
                if name.value != entry.name
            ]
        else:
            data[str(key.value)] = _tagged_data(node)
    if not data.get(entry.top) or isinstance(_child(root, entry.top), ScalarNode):
        data.pop(entry.top, None)
    return data


def _tagged_data(node: Node) -> Any:  # noqa: ANN401
    tag = str(node.tag)
    if isinstance(node, MappingNode):
        return tag, [(_tagged_data(key), _tagged_data(value)) for key, value in node.value]
    if isinstance(node, SequenceNode):
        return tag, [_tagged_data(value) for value in node.value]
    return tag, node.value
