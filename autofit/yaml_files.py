"""YAML files that people write: finding, reading and checking them; faults name file and line.

A name is searched in the working directory, then in the user's configuration folder, then in the
shipped files. YAML is read as version 1.2, where `on` is a string.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import platformdirs
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionStartEvent
from ruamel.yaml.nodes import MappingNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scalarbool import ScalarBoolean

from autofit.errors import UsageError
from autofit.input_files import read_input

ModelT = TypeVar("ModelT", bound=BaseModel)

# People write far smaller files; the longest dialect has 3,000 nodes.
_DEEPEST = 40
_MOST_NODES = 10_000
_LARGEST_BYTES = 1 << 20
_MOST_FAULTS = 20

# The folder of each kind of file, below every root.
FOLDERS = {
    "space": "search_spaces",
    "workload": "search_spaces/workloads",
    "dialect": "runners",
    "suite": "search_spaces/suites",
}


def bundled_root() -> Path:
    """Return the folder of the shipped YAML folders, in a wheel or in the repository."""
    inside = Path(__file__).parent / "_data"
    return inside if inside.is_dir() else Path(__file__).parent.parent


def roots() -> list[Path]:
    """Return the folders that are searched, in order."""
    try:
        here = [Path.cwd()]
    except OSError:  # the working directory was removed
        here = []
    return [*here, platformdirs.user_config_path("autofit"), bundled_root()]


def available(kind: str) -> dict[str, Path]:
    """Return the files of a kind by name; the first root that has a name wins."""
    found: dict[str, Path] = {}
    for root in roots():
        for path in sorted((root / FOLDERS[kind]).glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


def find(kind: str, name: str) -> Path:
    """Return the file with a name, or at an explicit path.

    Raises:
        UsageError: there is none; the hint lists the known names and their folders.
    """
    if "/" in name or name.endswith((".yaml", ".yml")):
        path = Path(name).expanduser()
        if path.is_file():
            return path
        raise UsageError(f"no such {kind} file: {path}", "give the path of a YAML file")
    found = available(kind)
    if name in found:
        return found[name]
    raise unknown_name(kind, name, {known: str(path.parent) for known, path in found.items()})


def load(path: Path, model: type[ModelT]) -> ModelT:
    """Read a YAML file into a pydantic model.

    Raises:
        UsageError: the file cannot be read or is faulty; every fault has the form
            `file:line: text`.
    """
    return validate(read_yaml(path), model, path)


def read_yaml(path: Path) -> Any:  # noqa: ANN401 - YAML can be anything
    """Return the file's data with positions, in ruamel.yaml's round-trip types.

    Raises:
        UsageError: the file cannot be read, or is no YAML.
    """
    data = b""
    try:
        data = read_input(path, _LARGEST_BYTES)
        text = data.decode("utf-8")
        yaml = YAML(typ="rt")
        yaml.Composer = _LimitedComposer
        return yaml.load(text)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: this is not UTF-8 text") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise UsageError(f"{path}:{line}: {what}") from error
    except ReaderError as error:
        line = data.decode("utf-8").count("\n", 0, error.position) + 1
        raise UsageError(f"{path}:{line}: {error.reason} (#x{error.character:02x})") from error
    except (YAMLError, ValueError) as error:
        raise UsageError(f"{path}:1: {error}") from error
    except RecursionError as error:
        raise UsageError(f"{path}:1: nested too deeply") from error
    except (LookupError, AttributeError, TypeError) as error:
        # The parser raises these for a mapping merged into itself, and for a tag whose value has
        # another type.
        raise UsageError(f"{path}:1: it has an invalid `<<` or `!!`") from error


class _LimitedComposer(Composer):
    """A composer that refuses a file of too many or too deeply nested nodes.

    An alias counts as all nodes that it repeats, because the data repeats them.
    """

    def __init__(self, loader: Any = None) -> None:  # noqa: ANN401 - ruamel.yaml's
        super().__init__(loader)
        self.warn_double_anchors = False
        self._count = 0
        self._nesting = 0
        self._counts: dict[str, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:  # noqa: ANN401 - ruamel.yaml's
        """Compose a node and its content."""
        event = self.parser.peek_event()
        before, anchor = self._count, event.anchor
        is_alias = isinstance(event, AliasEvent)
        self._count += 1 + (self._counts.get(anchor, 0) if is_alias else 0)
        self._nesting += 1
        fault = ""
        if is_alias and anchor in self.anchors and anchor not in self._counts:
            fault = f"{anchor} contains itself"
        elif (
            isinstance(parent, MappingNode)
            and index is None
            and isinstance(event, CollectionStartEvent)
        ):
            fault = "a key must be a text or number"
        elif self._count > _MOST_NODES:
            fault = f"more than {_MOST_NODES:,} keys and values"
        elif self._nesting > _DEEPEST:
            fault = f"nested more than {_DEEPEST} levels deep"
        if fault:
            raise ComposerError(None, None, fault, event.start_mark)
        if not is_alias:
            self._counts.pop(anchor, None)  # an anchor may be set again; the latest one counts
        node = super().compose_node(parent, index)
        if anchor is not None and not is_alias:
            self._counts[anchor] = self._count - before
        self._nesting -= 1
        return node


def validate(data: Any, model: type[ModelT], path: Path) -> ModelT:  # noqa: ANN401
    """Check the data of `read_yaml` against a pydantic model, and return the model.

    Raises:
        UsageError: the data is faulty; the message has all faults.
    """
    if not isinstance(data, CommentedMap):
        what = "is empty" if data is None else "must be a list of `name: value`"
        raise UsageError(f"{path}:1: the file {what}", "start from a shipped file of this kind")
    try:
        plain = _plain(data)
    except RecursionError as error:
        raise UsageError(f"{path}:1: nested too deeply, or an anchor contains itself") from error
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        faults = []
        found = error.errors()
        for fault in found[:_MOST_FAULTS]:
            place = ".".join(str(part) for part in fault["loc"]) or "file"
            line = line_of(data, fault["loc"])
            faults.append(f"{path}:{line}: {place}: {_describe_fault(fault, model)}")
        raise UsageError(
            list_faults(faults, len(found)), f"`autofit check {path}` shows this again"
        ) from error


def list_faults(faults: Sequence[str], count: int | None = None) -> str:
    """Return the first of `count` faults, one a line, and the number of the others."""
    shown = list(faults[:_MOST_FAULTS])
    more = (len(faults) if count is None else count) - len(shown)
    return "\n".join([*shown, *([f"and {more} more faults"] if more else [])])


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question for the most similar known word, empty if none is similar."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]}?" if close else ""


def unknown_name(kind: str, name: str, known: Mapping[str, str]) -> UsageError:
    """Return the error for an unknown name; its hint lists the known ones, one a line.

    `known` has a description of each name.
    """
    width = max(map(len, known), default=0)
    lines = [f"  {one:<{width}}  {about}" for one, about in sorted(known.items())]
    listed = "\n".join(["known:", *lines]) if lines else "none was found"
    question = did_you_mean(name, known)
    hint = f"{question} {listed}" if question else listed
    return UsageError(f"unknown {kind} '{name}'", hint)


def _describe_fault(fault: ErrorDetails, model: type[BaseModel]) -> str:
    """Describe a fault in the terms of the file's author."""
    if fault["type"] in ("missing", "missing_argument"):
        return "is missing"
    if fault["type"] not in ("extra_forbidden", "unexpected_keyword_argument"):
        return fault["msg"].removeprefix("Value error, ")
    *place, key = fault["loc"]
    question = did_you_mean(str(key), _known_keys(model.model_json_schema(), place))
    return f"unknown key; {question}" if question else "unknown key"


def _known_keys(schema: dict[str, Any], place: Sequence[int | str]) -> set[str]:
    """Return the keys that a JSON schema allows at a place, none for an unknown place."""
    parts = [schema]
    for step in (*place, None):
        reached: list[dict[str, Any]] = []
        while parts:
            part = parts.pop()
            if "$ref" in part:
                parts.append(schema["$defs"][part["$ref"].rpartition("/")[2]])
            parts += [*part.get("anyOf", ()), *part.get("allOf", ())]
            inner = [part.get("properties", {}).get(step), part.get("items")]
            inner += [part.get("additionalProperties"), *part.get("prefixItems", ())]
            reached += [part] if step is None else [one for one in inner if isinstance(one, dict)]
        parts = reached
    return {key for part in parts for key in part.get("properties", {})}


def line_of(data: Any, location: tuple[int | str, ...]) -> int:  # noqa: ANN401
    """Return the line (from 1) of the deepest part of a location that the file has."""
    line = 1
    for part in location:
        if isinstance(data, CommentedMap):
            keys = [key for key in data if str(key) == str(part)]
            if not keys:
                break
            # A key from a merge (`<<`) has no position of its own.
            line = _line(data, keys[0]) or line
            data = data[keys[0]]
        elif isinstance(data, CommentedSeq) and isinstance(part, int) and part < len(data):
            line = _line(data, part) or line
            data = data[part]
        else:
            break
    return line


def _line(data: CommentedMap | CommentedSeq, key: Any) -> int | None:  # noqa: ANN401
    places = data.lc.data or {}
    return places[key][0] + 1 if key in places else None


def _plain(data: Any) -> Any:  # noqa: ANN401
    """Return the data in plain types; pydantic would take ruamel.yaml's anchored `true` for 1."""
    if isinstance(data, dict):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_plain(value) for value in data]
    if isinstance(data, ScalarBoolean):
        return bool(data)
    for plain in (bool, int, float, str):
        if isinstance(data, plain):
            return plain(data)
    return data
