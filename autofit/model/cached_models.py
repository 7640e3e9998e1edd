"""GGUF models in the caches of llama.cpp and Hugging Face, by the names that llama-server uses.

Nothing is downloaded. Two layouts exist. In Hugging Face's, which llama.cpp shares since 2026, a
repository has a folder with snapshots. In llama.cpp's older one, all files are in one folder,
and a manifest for each name says which file it means.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from autofit.errors import AutofitError, MissingError, UsageError
from autofit.input_files import open_regular, parse_json, read_stream
from autofit.text_format import mib, one_line
from autofit.units import MIB

_NAME = re.compile(r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(?::(?P<quant>\w[\w.-]*))?")
_PART = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})", re.IGNORECASE)
_QUANT = re.compile(r"[-.](?P<quant>(?:UD-)?[A-Z0-9_]+)$", re.IGNORECASE)
# Parts of the names of files that are no models of their own.
_COMPANIONS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_FOLDER_PREFIX, _MANIFEST_PREFIX = "models--", "manifest="
_COMMIT = re.compile(r"[0-9a-f]{40}", re.IGNORECASE)
# Hugging Face's folder is at these paths below the folders in variables; the first counts most.
_HUB_VARIABLES = (
    ("LLAMA_CACHE", ""),
    ("HF_HUB_CACHE", ""),
    ("HUGGINGFACE_HUB_CACHE", ""),
    ("HF_HOME", "hub"),
    ("XDG_CACHE_HOME", "huggingface/hub"),
)
_MOST_LISTED = 20


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in a cache.

    Attributes:
        repository: `owner/name`, or empty if the cache does not say.
        file: the path of its first part in the repository.
        parts: the parts that are there, in order.
        count: the number of parts that the model has.
    """

    repository: str
    file: str
    parts: tuple[Path, ...]
    count: int

    @property
    def path(self) -> Path:
        """The file to give to a runtime: the first part."""
        return self.parts[0]

    @property
    def is_complete(self) -> bool:
        """True if all parts are there."""
        return len(self.parts) == self.count

    @property
    def quant(self) -> str:
        """The quantization in the file's name, empty if it has none."""
        found = _QUANT.search(_stem(self.file))
        return found["quant"].upper() if found else ""

    @property
    def name(self) -> str:
        """The name as llama-server's `-hf` takes it, or the file's name without a repository."""
        if not self.repository:
            return self.file
        return f"{self.repository}:{self.quant}" if self.quant else self.repository

    @property
    def size_mib(self) -> float:
        """The size of all parts that are there."""
        return sum(part.stat().st_size for part in self.parts) / MIB


def cached_models() -> list[CachedModel]:
    """Return the models in all caches, by name; each model once."""
    found: dict[tuple[str, str], CachedModel] = {}
    for model in (*_hub_models(), *_flat_models()):
        found.setdefault((model.repository.lower(), model.file), model)
    return sorted(found.values(), key=lambda model: (model.name.lower(), model.file))


def find_model(text: str, *, is_name: bool = False) -> Path:
    """Return the file of a model: the text as a path, or else the cached model of that name.

    With `is_name` the text is never a path.

    Raises:
        UsageError: it is neither, or several cached models match.
        MissingError: no cached model has this name, or parts of it are missing.
    """
    path, found = Path(text), _NAME.fullmatch(text)
    if not is_name and (found is None or text.lower().endswith(".gguf") or _exists(path)):
        return path
    if found is None:
        raise UsageError(
            f"'{one_line(text)}' is not the name of a model",
            "use owner/name or owner/name:quant, as for llama-server's -hf",
        )
    models = cached_models()
    matching = [model for model in models if _matches(model, found["repository"], found["quant"])]
    if len(matching) > 1:
        raise UsageError(
            f"{len(matching)} cached models match {text}",
            "\n".join(["use the name of one, or its path:", *_listed(matching)]),
        )
    download = _download_hint(found["repository"], found["quant"])
    if not matching:
        no_file = "" if is_name else "there is no such file, and "
        others = (
            ["models in the caches:", *_listed(models)] if models else ["the caches are empty"]
        )
        raise MissingError(
            f"{text}: {no_file}no cached model has this name", "\n".join([download, *others])
        )
    (model,) = matching
    if not model.is_complete:
        raise MissingError(
            f"{text}: only {len(model.parts)} of {model.count} parts are in the cache", download
        )
    return model.path


def _matches(model: CachedModel, repository: str, quant: str | None) -> bool:
    stem = _stem(model.file)
    if not model.repository:
        prefix = f"{repository.replace('/', '_')}_".lower()
        if not stem.lower().startswith(prefix):
            return False
    elif model.repository.lower() != repository.lower():
        return False
    # A folder of the repository can have the quantization in its name, too.
    pattern = rf"(?<![A-Za-z0-9]){re.escape(quant or '')}(?=[-./]|$)"
    return quant is None or re.search(pattern, stem, re.IGNORECASE) is not None


def model_lines(models: Sequence[CachedModel]) -> list[str]:
    """Return name, size and file of each model, one a line, in columns."""
    width = max((len(one_line(model.name)) for model in models), default=0)
    return [
        f"{one_line(model.name):<{width}}  {mib(model.size_mib):>9}  {one_line(model.path)}"
        + ("" if model.is_complete else f" ({len(model.parts)} of {model.count} parts)")
        for model in models
    ]


def _listed(models: Sequence[CachedModel]) -> Iterator[str]:
    yield from (f"  {line}" for line in model_lines(models[:_MOST_LISTED]))
    if len(models) > _MOST_LISTED:
        yield f"  and {len(models) - _MOST_LISTED} more: `autofit models` lists all"


def _download_hint(repository: str, quant: str | None) -> str:
    name = f"{repository}:{quant}" if quant else repository
    pattern = f" --include '*{quant}*'" if quant else " --include '*.gguf'"
    return f"download it with `llama-server -hf {name}` or `hf download {repository}{pattern}`"


def _hub_models() -> Iterator[CachedModel]:
    for folder in _existing(_hub_folders()):
        for repository in _entries(folder, f"{_FOLDER_PREFIX}*"):
            snapshot = _snapshot(repository)
            if snapshot is not None:
                name = repository.name.removeprefix(_FOLDER_PREFIX).replace("--", "/", 1)
                files = _entries(snapshot, "**/*.gguf")
                yield from _join_parts(
                    name, ((file.relative_to(snapshot).as_posix(), file) for file in files)
                )


def _hub_folders() -> Iterator[Path]:
    for variable, below in _HUB_VARIABLES:
        if os.environ.get(variable):
            yield Path(os.environ[variable]).expanduser() / below
    yield Path.home() / ".cache" / "huggingface" / "hub"


def _snapshot(repository: Path) -> Path | None:
    """Return the snapshot of the branch main, or else of another one, or else the newest."""
    snapshots = {path.name: path for path in _entries(repository / "snapshots", "*")}
    branches = sorted(_entries(repository / "refs", "*"), key=lambda ref: ref.name != "main")
    for branch in branches:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            commit = branch.read_text(encoding="ascii").strip()
            if _COMMIT.fullmatch(commit) and commit in snapshots:
                return snapshots[commit]
    return max(snapshots.values(), key=lambda path: path.stat().st_mtime, default=None)


def _flat_models() -> Iterator[CachedModel]:
    for folder in _existing(_flat_folders()):
        files = {file.name: file for file in _entries(folder, "*.gguf")}
        for manifest in _entries(folder, f"{_MANIFEST_PREFIX}*.json"):
            named = _read_manifest(manifest)
            if named is not None:
                repository, file = named
                prefix = f"{repository.replace('/', '_')}_"
                stem = _stem(prefix + file.replace("/", "_"))
                own = {name: path for name, path in files.items() if _stem(name) == stem}
                files = {name: path for name, path in files.items() if name not in own}
                yield from _join_parts(
                    repository, ((name.removeprefix(prefix), path) for name, path in own.items())
                )
        yield from _join_parts("", files.items())


def _flat_folders() -> Iterator[Path]:
    if os.environ.get("LLAMA_CACHE"):
        yield Path(os.environ["LLAMA_CACHE"]).expanduser()
    yield platformdirs.user_cache_path("llama.cpp")


def _read_manifest(path: Path) -> tuple[str, str] | None:
    """Return the repository and the file that a manifest names, or None if it is damaged."""
    parts = path.stem.removeprefix(_MANIFEST_PREFIX).split("=")
    try:
        owner, name, _ = parts
        with open_regular(path) as file:
            named = parse_json(read_stream(file))["ggufFile"]["rfilename"]
    except (OSError, AutofitError, ValueError, KeyError, TypeError):
        return None
    return (f"{owner}/{name}", named) if isinstance(named, str) else None


def _join_parts(repository: str, files: Iterable[tuple[str, Path]]) -> Iterator[CachedModel]:
    """Yield the models that consist of these files, without projectors and draft models."""
    parts: dict[tuple[str, int], dict[int, tuple[str, Path]]] = {}
    for name, path in sorted(files):
        if any(word in Path(name).name.lower() for word in _COMPANIONS):
            continue
        split = _PART.fullmatch(name.removesuffix(".gguf"))
        number, count = (int(split["part"]), int(split["count"])) if split else (1, 1)
        parts.setdefault((_stem(name), count), {})[number] = (name, path)
    for (_, count), numbered in parts.items():
        ordered = [numbered[number] for number in sorted(numbered)]
        yield CachedModel(repository, ordered[0][0], tuple(path for _, path in ordered), count)


def _stem(file: str) -> str:
    """Return a file's name without its suffix and the number of its part."""
    stem = file.removesuffix(".gguf")
    split = _PART.fullmatch(stem)
    return split["stem"] if split else stem


def _existing(folders: Iterable[Path]) -> list[Path]:
    return [folder for folder in dict.fromkeys(folders) if _exists(folder)]


def _exists(path: Path) -> bool:
    try:
        return path.expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # a home that is unknown, a name that is no path
        return False


def _entries(folder: Path, pattern: str) -> list[Path]:
    """Return what is in a folder, without links to files that are not there."""
    try:
        return sorted(path for path in folder.glob(pattern) if path.exists())
    except OSError:
        return []
