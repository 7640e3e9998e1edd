"""Check names, docstrings, comments and messages against the project's rules for plain English.

    python tests/checks/check_wording.py [PATH ...] [--count]

Reports banned words, docstrings that open with a question word, and public classes and modules
that share a name. `docs/glossary.md` has the words to use instead. A line that needs a banned
word, such as a quotation, ends with the comment `wording: quote`.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CODE = ("autofit", "tests", "benchmarks")
DOCUMENTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "runners", "search_spaces")
# Recorded output of other programs, and files of users that tests read.
NOT_OURS = (
    "tests/data/",
    "tests/checks/",
    "tests/fakes/help/",
    "search_spaces/workloads/prompt.txt",
)
QUOTE = "wording: quote"

BANNED = re.compile(
    r"\b(?:tell|tells|told|telling|fallen|fell|falls?(?! ?back)|falling(?! back)|befalls?|befell"
    r"|besides?|alike|anew|so many|nobody|mends?|mended|luck|lucky|undress\w*|unhindered"
    r"|promis(?:e|es|ed|ing)|leans?(?! on\b)|look(?:s|ed)? over|in words|wants? memory"
    r"|wanted memory|for want of|stands in\b)\b",
    re.IGNORECASE,
)
QUESTION = re.compile(r"(?:What|Whether|How|Who|Whose|Where|Which|When)\b")
_NAME_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
BANNED_IN_NAMES = frozenset(
    (
        *("tell", "tells", "told", "fallen", "fell", "falls", "befall", "mend", "mends", "luck"),
        *("beside", "alike", "anew", "nobody", "lean", "leans", "undress", "unhindered"),
        *("wanted", "wants", "lacked", "doubtful", "surprise"),
    )
)


class Fault(NamedTuple):
    """One place that breaks a rule."""

    path: str
    line: int
    text: str


def python_faults(path: str, source: str) -> Iterator[Fault]:
    """Yield the faults of one Python file."""
    lines = source.splitlines()
    tree = ast.parse(source)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (tokenize.COMMENT, tokenize.STRING):
            continue
        for offset, text in enumerate(token.string.splitlines()):
            line = token.start[0] + offset
            found = BANNED.search(text)
            if found and QUOTE not in lines[line - 1]:
                yield Fault(path, line, f"banned: {found[0]!r}")
    for node in ast.walk(tree):
        yield from _name_faults(path, node)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if QUESTION.match(text) and not _is_test(node):
                line = getattr(node, "lineno", 1)
                yield Fault(path, line, f"docstring opens with {text.split()[0]!r}")


def _is_test(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name.startswith("test_")


def _name_faults(path: str, node: ast.AST) -> Iterator[Fault]:
    names: list[str] = []
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        names = [node.name]
    elif isinstance(node, ast.arg):
        names = [node.arg]
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        names = [node.id]
    for name in names:
        parts = {part.lower() for part in _NAME_PARTS.findall(name)}
        if parts & BANNED_IN_NAMES or name.startswith("test_what_"):
            yield Fault(path, node.lineno, f"name: {name}")  # type: ignore[attr-defined]


def document_faults(path: str, text: str) -> Iterator[Fault]:
    """Yield the faults of a document or of a YAML file."""
    for number, line in enumerate(text.splitlines(), 1):
        found = BANNED.search(line)
        if found and QUOTE not in line:
            yield Fault(path, number, f"banned: {found[0]!r}")


def shared_names(paths: Sequence[str]) -> Iterator[Fault]:
    """Yield public classes, and modules, that have the name of another."""
    classes: dict[str, list[tuple[str, int]]] = defaultdict(list)
    modules: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        if not path.startswith("autofit/"):
            continue
        stem = Path(path).stem
        if not stem.startswith("__") and "/cli/commands/" not in path:
            modules[stem].append(path)
        for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append((path, node.lineno))
    for name, places in classes.items():
        for path, line in places if len(places) > 1 else ():
            yield Fault(path, line, f"class {name} is defined {len(places)} times")
    for name, owners in modules.items():
        for path in owners if len(owners) > 1 else ():
            yield Fault(path, 1, f"module name {name} occurs {len(owners)} times")


def our_files(roots: Sequence[str], suffixes: tuple[str, ...]) -> list[str]:
    """Return the files below some paths, relative to the project, less recorded ones."""
    found: set[str] = set()
    for root in roots:
        place = ROOT / root
        files = [place] if place.is_file() else place.rglob("*")
        for file in files:
            name = file.relative_to(ROOT).as_posix()
            if file.suffix in suffixes and not name.startswith(NOT_OURS):
                found.add(name)
    return sorted(found)


def main(arguments: Sequence[str]) -> int:
    """Print every fault, or with `--count` the number for each folder; return the exit status."""
    is_count = "--count" in arguments
    paths = [argument for argument in arguments if not argument.startswith("--")]
    code = our_files(CODE, (".py",))
    documents = our_files(DOCUMENTS, (".md", ".yaml"))
    faults = list(shared_names(code))
    for name in code:
        faults += python_faults(name, (ROOT / name).read_text(encoding="utf-8"))
    for name in documents:
        faults += document_faults(name, (ROOT / name).read_text(encoding="utf-8"))
    if paths:
        faults = [fault for fault in faults if fault.path.startswith(tuple(paths))]
    if is_count:
        counts = Counter("/".join(fault.path.split("/")[:2]) for fault in faults)
        for folder, count in sorted(counts.items()):
            print(f"{count:6} {folder}")
    else:
        for fault in sorted(faults):
            print(f"{fault.path}:{fault.line}: {fault.text}")
    print(f"{len(faults)} faults of wording", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
