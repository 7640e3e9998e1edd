"""Where a study goes when nobody says, and names that every file system takes."""

from __future__ import annotations

import re
import unicodedata
from datetime import date
from itertools import count
from pathlib import Path

import platformdirs

from autofit.study.durable_file import storage_error

_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 60


def safe_name(text: str) -> str:
    """A name of at most 60 ASCII characters, close to the text, that any file system takes.

    A model's file ending and shard number are left out.
    """
    stem = _SHARD.sub("", re.sub(r"\.gguf$", "", text, flags=re.IGNORECASE))
    ascii_only = unicodedata.normalize("NFKD", stem).encode("ascii", "ignore").decode()
    return _UNSAFE.sub("-", ascii_only)[:_LONGEST].strip("-._") or "model"


def user_data() -> Path:
    """The user's folder for what autofit keeps between runs."""
    return platformdirs.user_data_path("autofit")


def new_study_folder(
    model_name: str, *, today: date, parent: Path | None = None, fallback: Path | None = None
) -> Path:
    """Make a new, empty folder `<model>-<date>-<n>` and return its path.

    It lies under `parent` (default: `results` in the working directory), or, where that
    cannot be written, under `fallback` (default: `studies` in the user's data folder).

    Raises:
        AutofitError: neither can be written.
    """
    name = f"{safe_name(model_name)}-{today:%Y-%m-%d}"
    try:
        return _claim(parent or Path.cwd() / "results", name)
    except OSError:
        place = fallback or user_data() / "studies"
    try:
        return _claim(place, name)
    except OSError as error:
        raise storage_error(error, place) from error


def _claim(parent: Path, name: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        folder = parent / f"{name}-{number}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError  # count() does not end
