"""The folder of machine knowledge: what is kept is read again, and nothing else is used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from knowledge.study_sample import MACHINE, known_study

from autofit.knowledge.knowledge_document import MOST_STUDIES
from autofit.knowledge.knowledge_folder import add_study, knowledge_folder, read_knowledge


def only_file(folder: Path) -> Path:
    """Return the only file of a folder."""
    (found,) = folder.glob("*.json")
    return found


def test_a_study_is_read_as_it_was_kept(tmp_path) -> None:
    """A folder that did not exist has one readable file with a schema number then."""
    folder = tmp_path / "new" / "knowledge"
    assert add_study(MACHINE, known_study(), folder) == ""

    found = read_knowledge(MACHINE, folder)

    assert found.studies == (known_study(),)
    assert found.files == (only_file(folder),)
    assert found.notices == ()
    assert json.loads(only_file(folder).read_text())["schema"] == 1


def test_a_resumed_study_replaces_itself(tmp_path) -> None:
    """A study with the same id is kept once, as it was last."""
    add_study(MACHINE, known_study(), tmp_path)
    add_study(MACHINE, known_study(finished_at=2e9), tmp_path)
    assert [one.finished_at for one in read_knowledge(MACHINE, tmp_path).studies] == [2e9]


def test_only_the_newest_studies_are_kept(tmp_path) -> None:
    """Older ones make room for newer ones."""
    for number in range(MOST_STUDIES + 3):
        add_study(MACHINE, known_study(number), tmp_path)
    found = read_knowledge(MACHINE, tmp_path).studies
    assert [one.id for one in found] == [f"study {n}" for n in range(3, MOST_STUDIES + 3)]


def test_each_build_has_a_file_and_all_are_read(tmp_path) -> None:
    """Studies of two builds of a machine are in two files."""
    add_study(MACHINE, known_study(1), tmp_path)
    add_study(MACHINE, known_study(2, build="b2"), tmp_path)
    found = read_knowledge(MACHINE, tmp_path)
    assert len(found.files) == 2
    assert found.builds == ("b1", "b2")


@pytest.mark.parametrize(
    "change",
    [
        {"cpu": "another CPU"},
        {"cpu_count": 4},
        {"memory_gib": 32.0},
        {"devices": ("CUDA0: another card, 12 GiB",)},
        {"links": ("CUDA0: 3.2 GB/s",)},
    ],
)
def test_knowledge_of_another_machine_is_not_used(tmp_path, change) -> None:
    """A notice says in what the machines differ; the file stays."""
    add_study(MACHINE.model_copy(update=change), known_study(), tmp_path)
    found = read_knowledge(MACHINE, tmp_path)
    assert found.studies == ()
    (notice,) = found.notices
    assert next(iter(change)) in notice
    assert only_file(tmp_path).exists()


def test_files_of_other_machines_need_no_notice_if_this_one_has_its_own(tmp_path) -> None:
    """A folder that several kinds of machines share is normal."""
    add_study(MACHINE.model_copy(update={"cpu": "another"}), known_study(1), tmp_path)
    add_study(MACHINE, known_study(2), tmp_path)
    found = read_knowledge(MACHINE, tmp_path)
    assert [one.id for one in found.studies] == ["study 2"]
    assert found.notices == ()


def test_the_settings_of_the_fastest_launches_are_shown(tmp_path) -> None:
    """Of several values the one counts that most studies found to be the fastest."""
    slow = {"devices": {}, "prompt_s_per_token": 1.0, "generated_s_per_token": 1.0}
    fast = {**slow, "generated_s_per_token": 0.5}
    for number, threads in enumerate((8, 4, 4)):
        launches = [
            {**slow, "settings": {"threads": 99}},
            {**fast, "settings": {"threads": threads}},
        ]
        add_study(MACHINE, known_study(number, launches=launches), tmp_path)
    assert read_knowledge(MACHINE, tmp_path).best_settings == {"threads": 4}


def _with(path: Path, place: list, value: object) -> str:
    """Return the text of a file with one value replaced."""
    document = json.loads(path.read_text())
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return json.dumps(document)


LAUNCH = ["studies", 0, "launches", 0]
DAMAGES = [
    [["schema"], 2],
    [["machine"], None],
    [["studies"], "all"],
    [["studies", 0, "requests"], []],
    [["studies", 0, "model", "layers"], 0],
    [["studies", 0, "model", "movable_bytes"], -1.0],
    [["studies", 0, "model", "kv_bytes"], 0.0],
    [["studies", 0, "model", "layers"], 99_999],
    [["studies", 0, "finished_at"], "yesterday"],
    [[*LAUNCH, "prompt_s_per_token"], 0.0],
    [[*LAUNCH, "prompt_s_per_token"], "fast"],
    [[*LAUNCH, "generated_s_per_token"], 1e300],
    [[*LAUNCH, "devices", "CUDA0", "layers"], -3.0],
    [[*LAUNCH, "devices", "CUDA0", "host_layers"], 99_999.0],
    [[*LAUNCH, "whole_host_layers"], 99_999],
    [[*LAUNCH, "settings", "threads"], [8]],
]


@pytest.mark.parametrize(("place", "value"), DAMAGES)
def test_a_damaged_file_is_not_used(tmp_path, place, value) -> None:
    """A wrong type, range or schema gives a notice, and the next study replaces the file."""
    add_study(MACHINE, known_study(1), tmp_path)
    path = only_file(tmp_path)
    path.write_text(_with(path, place, value))

    found = read_knowledge(MACHINE, tmp_path)

    assert found.studies == ()
    assert len(found.notices) == 1
    assert add_study(MACHINE, known_study(2), tmp_path) == ""
    assert [one.id for one in read_knowledge(MACHINE, tmp_path).studies] == ["study 2"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": NaN}', "[" * 10_000, "\x00"])
def test_a_file_that_is_no_document_is_not_used(tmp_path, text) -> None:
    """Texts that are no JSON, or another JSON, give a notice."""
    (tmp_path / "a.json").write_text(text)
    found = read_knowledge(MACHINE, tmp_path)
    assert (found.studies, len(found.notices)) == ((), 1)


def test_a_folder_that_cannot_be_made_is_reported(tmp_path) -> None:
    """The reason is returned, and nothing is raised."""
    (tmp_path / "file").write_text("")
    assert add_study(MACHINE, known_study(), tmp_path / "file" / "knowledge") != ""
    assert read_knowledge(MACHINE, tmp_path / "file" / "knowledge").studies == ()


def test_the_variable_names_the_folder(monkeypatch, tmp_path) -> None:
    """Without AUTOFIT_KNOWLEDGE it is in the user's data folder."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("AUTOFIT_KNOWLEDGE", raising=False)
    assert knowledge_folder() == tmp_path / "data" / "autofit" / "knowledge"
    monkeypatch.setenv("AUTOFIT_KNOWLEDGE", str(tmp_path / "fleet"))
    assert knowledge_folder() == tmp_path / "fleet"
