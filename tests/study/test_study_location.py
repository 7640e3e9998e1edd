"""Folders of studies, and names that any file system accepts."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.errors import AutofitError
from autofit.study.study_location import create_study_folder, safe_name

TODAY = date(2026, 11, 29)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen3-30B-A3B-Q4_K_M.gguf", "Qwen3-30B-A3B-Q4_K_M"),
        ("big-00001-of-00003.gguf", "big"),
        ("my model (v2); rm -rf.GGUF", "my-model-v2-rm--rf"),
        ("../../etc/passwd", "etc-passwd"),
        ("modèle.gguf", "modele"),
        ("模型.gguf", "model"),
        ("", "model"),
    ],
)
def test_names_stay_readable(text, name):
    """The name of a model has no unsafe characters, no shard and no ending."""
    assert safe_name(text) == name


@given(st.text())
def test_any_name_is_safe(text):
    """The name for any text is short ASCII, and neither hidden nor empty."""
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}", safe_name(text))


def test_folders_are_numbered_through_the_day(tmp_path):
    """Each study has a new folder with model, day and number in its name."""
    names = [
        create_study_folder("Tiny.gguf", today=TODAY, parent=tmp_path / "results").name
        for _ in range(2)
    ]

    assert names == ["Tiny-2026-11-29-1", "Tiny-2026-11-29-2"]


def test_an_unwritable_working_directory(tmp_path):
    """Without a writable `results`, the study is in the user's data folder."""
    folder = create_study_folder(
        "Tiny", today=TODAY, parent=Path("/sys/kernel/results"), fallback=tmp_path / "studies"
    )

    assert folder == tmp_path / "studies/Tiny-2026-11-29-1"
    assert folder.is_dir()


def test_no_writable_folder_is_an_error():
    """If neither folder is writable, the error asks for one."""
    with pytest.raises(AutofitError) as caught:
        create_study_folder(
            "Tiny", today=TODAY, parent=Path("/sys/kernel/a"), fallback=Path("/sys/kernel/b")
        )

    assert "--study DIR" in caught.value.hint
