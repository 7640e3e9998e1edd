"""The trials of a shared tune as a study folder, which every command can read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from autofit.errors import UsageError
from autofit.fleet.shared_trials import HEADER, RESULT, DeviceNames, finished_trials, workers
from autofit.fleet.storage import WaitingStorage, open_storage, shown_url
from autofit.study.study_folder import Study
from autofit.study.study_header import StudyHeader
from autofit.study.study_location import safe_name, user_data_folder

_NEEDED_MIB = 1.0


def gather_study(url: str, report: Callable[[str], None]) -> Study:
    """Write what a storage has of a shared tune into the user's data folder, and open it there.

    The URL may end with `#NAME`, the name of the study. Without it there must be only one.

    Raises:
        UsageError: the storage cannot be used, or has no such study.
    """
    url, _, name = url.partition("#")
    storage = open_storage(url, report=report)
    study_id = _find_study(storage, url, name)
    trials = storage.get_all_trials(study_id, deepcopy=False)
    first = workers(trials)[0]
    header = StudyHeader.from_dict(json.loads(first.system_attrs[HEADER]))
    path = _folder(storage.get_study_name_from_id(study_id), str(first.datetime_start))
    is_new = not (path / "study.json").exists()
    with (
        Study.create(path, header, needed_mib=_NEEDED_MIB)
        if is_new
        else Study.resume(path, header)
    ) as study:
        known = {trial.number for trial in study.trials()}
        for one in finished_trials(trials, DeviceNames()):
            if one.trial.number not in known:
                # A note says where it was launched, since the devices of all hosts look the same.
                notes = (*one.trial.notes, f"launched on {one.host}")
                study.write_trial(replace(one.trial, notes=notes))
        result = storage.get_study_system_attrs(study_id).get(RESULT)
        if result is not None:
            study.conclude({**json.loads(result), "study": str(path)})
    return Study.open(path)


def _folder(name: str, started_at: str) -> Path:
    digits = "".join(filter(str.isdecimal, started_at))
    return user_data_folder() / "shared" / f"{safe_name(name)}-{digits}"


def _find_study(storage: WaitingStorage, url: str, name: str) -> int:
    """Return the id of a study of a shared tune."""
    found = {
        study.study_name: study._study_id  # noqa: SLF001 - Optuna's storages take it from there
        for study in storage.get_all_studies()
        if workers(storage.get_all_trials(study._study_id, deepcopy=False))  # noqa: SLF001
    }
    if name in found:
        return found[name]
    if len(found) == 1 and not name:
        return next(iter(found.values()))
    shown = shown_url(url)
    if not found:
        raise UsageError(f"{shown} has no shared tune", "`autofit tune --storage` makes one")
    raise UsageError(
        f"{shown} has no shared tune {name}" if name else f"{shown} has several shared tunes",
        f"add the name of one to the URL: #{', #'.join(found)}",
    )
