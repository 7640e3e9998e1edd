"""The folder of machine knowledge: one file for each machine and build.

It is `knowledge` in the user's data folder, or the folder that AUTOFIT_KNOWLEDGE names, such as
one that identical machines share. Knowledge is optional: what cannot be read is not used, what
cannot be written is not kept, and neither fails a run.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import ValidationError

from autofit.errors import AutofitError
from autofit.input_files import read_json
from autofit.knowledge.knowledge_document import (
    MOST_STUDIES,
    KnowledgeDocument,
    KnownMachine,
    KnownStudy,
    make_document,
)
from autofit.study.durable_file import write_durably
from autofit.study.study_folder import Study
from autofit.study.study_location import safe_name, user_data_folder
from autofit.trial.candidate import ParamValue
from autofit.units import MIB

VARIABLE = "AUTOFIT_KNOWLEDGE"
_LARGEST_BYTES = 8 * MIB
_MOST_FILES = 200
_LOCK_S = 5.0
# Settings of which the best value belongs to the machine more than to the model.
_SHOWN_SETTINGS = ("threads", "load_mode", "ubatch", "flash_attn", "numa", "op_offload")
# The file in a study's folder with the machine knowledge that its search began with.
_STUDY_FILE = "knowledge.json"


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The studies that are known about a machine, and notices about files that were not used."""

    folder: Path
    files: tuple[Path, ...] = ()
    studies: tuple[KnownStudy, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models, those of the newest study last."""
        return tuple(dict.fromkeys(study.model.name for study in self.studies))

    @property
    def builds(self) -> tuple[str, ...]:
        """The builds, that of the newest study last."""
        return tuple(dict.fromkeys(study.build for study in self.studies))

    @property
    def best_settings(self) -> dict[str, ParamValue]:
        """The settings that the fastest launches of most studies had."""
        fastest = [study.fastest.settings for study in self.studies]
        found = {
            name: Counter(one[name] for one in fastest if name in one).most_common(1)
            for name in _SHOWN_SETTINGS
        }
        return {name: common[0][0] for name, common in found.items() if common}

    def to_dict(self) -> dict[str, Any]:
        """Return a summary as JSON data."""
        return {
            "folder": str(self.folder),
            "files": [str(path) for path in self.files],
            "studies": len(self.studies),
            "launches": sum(len(study.launches) for study in self.studies),
            "models": list(self.models),
            "builds": list(self.builds),
            "best_settings": self.best_settings,
            "newest_at": self.studies[-1].finished_at if self.studies else None,
            "notices": list(self.notices),
        }


def knowledge_folder() -> Path:
    """Return the folder of machine knowledge."""
    given = os.environ.get(VARIABLE)
    return Path(given) if given else user_data_folder() / "knowledge"


def read_knowledge(machine: KnownMachine, folder: Path | None = None) -> Knowledge:
    """Return the studies known about a machine, of all builds."""
    place = folder or knowledge_folder()
    files: list[Path] = []
    studies: dict[str, KnownStudy] = {}
    notices: list[str] = []
    differences: list[str] = []
    for path in _paths(place):
        document = read_knowledge_file(path)
        if isinstance(document, str):
            notices.append(f"{path} was not used: {document}; delete it, or copy it again")
        elif document.machine == machine:
            files.append(path)
            studies.update((one.id, one) for one in document.studies)
        else:
            differences += document.machine.differences(machine)
    if differences and not files:
        names = ", ".join(dict.fromkeys(differences))
        notices.append(
            f"the machine knowledge in {place} is of another machine ({names} differ), so it was "
            "not used"
        )
    ordered = sorted(studies.values(), key=lambda study: study.finished_at)
    return Knowledge(place, tuple(files), tuple(ordered), tuple(notices))


def study_knowledge(
    study: Study, machine: KnownMachine, *, is_resumed: bool, is_fresh: bool
) -> Knowledge:
    """Return the knowledge that the search of a study begins with, and keep it in its folder.

    A resumed search begins with the same, so that it continues as it would have. A new one that
    `is_fresh` begins with none.
    """
    kept = study.path / _STUDY_FILE
    if is_resumed and kept.exists():
        document = read_knowledge_file(kept)
        if isinstance(document, str):
            return Knowledge(study.path, notices=(f"{kept} was not used: {document}",))
        return Knowledge(study.path, (kept,), document.studies)
    if is_resumed or is_fresh:
        return Knowledge(study.path)
    known = read_knowledge(machine)
    if not known.studies:
        return known
    try:
        study.write_output(_STUDY_FILE, make_document(machine, known.studies).to_json())
    except AutofitError as error:  # without it the search could not be resumed as it was
        return Knowledge(study.path, notices=(*known.notices, error.message))
    number = len(known.studies)
    text = (
        f"the search begins with what {'the study' if number == 1 else f'{number} studies'} "
        "before it showed about this machine (--fresh ignores it)"
    )
    return replace(known, notices=(*known.notices, text))


def read_knowledge_file(path: Path) -> KnowledgeDocument | str:
    """Return the document in a file, or the reason why it cannot be used."""
    try:
        return KnowledgeDocument.model_validate(read_json(path, _LARGEST_BYTES))
    except OSError as error:
        return error.strerror or str(error)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place or 'it'}: {first['msg']}"
    except ValueError as error:
        return str(error)


def add_study(machine: KnownMachine, study: KnownStudy, folder: Path | None = None) -> str:
    """Keep a study, and return the reason if it cannot be kept, or else an empty text."""
    place = folder or knowledge_folder()
    path = place / _file_name(machine, study.build)
    try:
        place.mkdir(parents=True, exist_ok=True)
        with FileLock(place / ".lock", timeout=_LOCK_S):
            known = read_knowledge_file(path) if path.exists() else ""
            # A damaged file cannot be read by anyone else either.
            before = () if isinstance(known, str) else known.studies
            others = [one for one in before if one.id != study.id]
            kept = sorted([*others, study], key=lambda one: one.finished_at)[-MOST_STUDIES:]
            write_durably(path, make_document(machine, kept).to_json())
    except (OSError, Timeout, NotImplementedError) as error:
        reason = error.strerror if isinstance(error, OSError) else ""
        return f"{path}: {reason or error}"
    return ""


def _paths(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder, or the file itself if it is one."""
    try:
        if folder.is_file():
            yield folder
            return
        yield from sorted(folder.glob("*.json"))[:_MOST_FILES]
    except OSError:
        return


def _file_name(machine: KnownMachine, build: str) -> str:
    """Return a name that people recognise, and that is different for each machine and build."""
    device = (
        machine.devices[0].partition(":")[2].partition(",")[0].strip() if machine.devices else ""
    )
    digests = (
        hashlib.sha256(text.encode()).hexdigest()[:8]
        for text in (machine.model_dump_json(), build)
    )
    return "-".join((safe_name(device or machine.cpu), *digests)) + ".json"
