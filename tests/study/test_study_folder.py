"""The study folder: written data can be read, and there is one writer at a time."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from study.study_process import python_process
from study.study_sample import ENVIRONMENT, header, trial

from autofit.errors import AutofitError, UsageError
from autofit.study.study_folder import Study
from autofit.study.study_records import SkippedCandidate
from autofit.trial.candidate import Candidate
from autofit.trial.outcome import OutOfMemory, Skipped


def test_trials_are_read_as_written(tmp_path):
    """Trials are read as they were written, in the order of their numbers."""
    failed = trial(2, OutOfMemory("context", "cudaMalloc failed", buffer="kv"), n_cpu_moe=3)
    with Study.create(tmp_path / "study", header()) as study:
        study.write_trial(failed)
        study.write_trial(trial(1))

        assert study.next_number() == 3

    reread = Study.open(tmp_path / "study")

    assert reread.trials() == (trial(1), failed)
    assert reread.header == header()
    assert reread.notices == []


def test_result_and_outputs_are_kept(tmp_path):
    """The result is read as written, and reports and presets are in the folder."""
    with Study.create(tmp_path / "study", header()) as study:
        study.conclude({"gain": None, "launches": 3})
        study.write_output("presets/winner.ini", "[model]\n")

    assert Study.open(tmp_path / "study").result == {"gain": None, "launches": 3}
    assert (tmp_path / "study/presets/winner.ini").read_text() == "[model]\n"


def test_raw_bytes_in_text_survive(tmp_path):
    """A path of raw bytes is the same in a trial and in an output."""
    path = os.fsdecode(b"/models/caf\xe9.gguf")
    with Study.create(tmp_path / "study", header(model_path=path)) as study:
        study.write_trial(replace(trial(1), argv=("llama-server", "-m", path)))
        study.write_output("presets/x", path)

    reread = Study.open(tmp_path / "study")

    assert reread.header.model_path == path
    assert reread.trials()[0].argv[2] == path
    assert (tmp_path / "study/presets/x").read_bytes() == os.fsencode(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe\x00", b"[]", b"{}", b'{"schema": 1}', b'{"schema": "1"}', b"null"],
)
def test_a_damaged_trial_is_ignored_with_a_notice(tmp_path, content):
    """A damaged or foreign file is named in a notice and kept, with its number."""
    with Study.create(tmp_path / "study", header()) as study:
        study.write_trial(trial(1))
        study.write_trial(trial(2))
        damaged = tmp_path / "study/trials/0002.json"
        damaged.write_bytes(content)
        (tmp_path / "study/trials/notes.txt").write_text("mine")

        assert study.trials() == (trial(1),)
        assert "0002.json" in study.notices[0]
        assert study.next_number() == 3
        assert damaged.read_bytes() == content


def test_a_trial_with_another_number_is_ignored(tmp_path):
    """A copied trial file is not counted twice."""
    with Study.create(tmp_path / "study", header()) as study:
        study.write_trial(trial(1))
        source = tmp_path / "study/trials/0001.json"
        (tmp_path / "study/trials/0009.json").write_bytes(source.read_bytes())

        assert study.trials() == (trial(1),)
        assert "0009.json" in study.notices[0]


def test_skipped_candidates_after_an_incomplete_line(tmp_path):
    """Records after an incomplete line are read, and a notice reports the line."""
    first = SkippedCandidate(Candidate({"n_cpu_moe": 1}), Skipped("dominated"), "search", "x")
    second = SkippedCandidate(Candidate({"n_cpu_moe": 2}), Skipped("estimate"), "boundary")
    with Study.create(tmp_path / "study", header()) as study:
        study.skip(first)
        with (tmp_path / "study/skipped.jsonl").open("a") as file:
            file.write('{"phase": "sea')
        study.skip(second)

        assert study.skipped() == (first, second)
        assert "1 unreadable line" in study.notices[0]


def test_a_second_writer_is_an_error(tmp_path):
    """A second autofit cannot write while the first does, but can read."""
    with Study.create(tmp_path / "study", header()) as study:
        study.write_trial(trial(1))
        child = python_process(
            """
            import sys
            from pathlib import Path
            from study.study_sample import header
            from autofit.errors import AutofitError
            from autofit.study.study_folder import Study
            try:
                Study.resume(Path(sys.argv[1]), header())
            except AutofitError as error:
                print(error.message, "|", len(Study.open(Path(sys.argv[1])).trials()))
            """,
            str(study.path),
        )
        out, err = child.communicate(timeout=30)

        assert "another autofit is writing" in out, err
        assert out.strip().endswith("| 1")
    with Study.resume(tmp_path / "study", header()) as study:
        assert len(study.trials()) == 1


def test_a_study_open_for_reading_cannot_be_written(tmp_path):
    """A study that is open for reading cannot be written."""
    Study.create(tmp_path / "study", header()).close()
    with pytest.raises(RuntimeError, match="only for reading"):
        Study.open(tmp_path / "study").write_trial(trial(1))


def test_an_existing_study_is_not_overwritten(tmp_path):
    """A new study in the folder of another is an error that names --resume."""
    with Study.create(tmp_path / "study", header()) as study:
        study.write_trial(trial(1))

    with pytest.raises(UsageError) as caught:
        Study.create(tmp_path / "study", header(seed=8))

    assert "--resume" in caught.value.hint
    assert Study.open(tmp_path / "study").header.seed == 7


@pytest.mark.parametrize("target", ["nowhere", "link", "file", "file/below"])
@pytest.mark.parametrize("below", ["", "study", "trials"])
def test_a_link_to_no_folder_is_no_place_for_a_study(target, below, tmp_path):
    """The error names the link in place of the study, above it or in it."""
    (tmp_path / "file").write_text("text")
    link = tmp_path / ("study/trials" if below == "trials" else "link")
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(link.name if target == "link" else tmp_path / target)
    place = link.parent if below == "trials" else link / below
    with pytest.raises(UsageError) as caught:
        Study.create(place, header())

    assert f"{link} is a" in caught.value.message
    assert caught.value.hint


def test_a_folder_with_other_files_is_an_error(tmp_path):
    """A folder with other files is neither written nor read as a study."""
    (tmp_path / "thesis.tex").write_text("chapter 1")

    with pytest.raises(UsageError, match=r"thesis\.tex"):
        Study.create(tmp_path, header())
    with pytest.raises(UsageError, match="is not a study"):
        Study.open(tmp_path)
    with pytest.raises(UsageError, match="is not a study"):
        Study.open(tmp_path / "thesis.tex")
    with pytest.raises(AutofitError):
        Study.create(tmp_path / "thesis.tex", header())


def test_an_incomplete_new_study_is_replaced(tmp_path):
    """A kill before study.json was written does not block the folder."""
    Study.create(tmp_path / "study", header()).close()
    (tmp_path / "study/study.json").unlink()

    Study.create(tmp_path / "study", header()).close()

    assert Study.open(tmp_path / "study").trials() == ()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"environment": replace(ENVIRONMENT, model_digest="ffff")}, "model: 0011"),
        ({"environment": replace(ENVIRONMENT, devices=())}, "devices: CUDA0"),
        ({"dialect": "ik_llama_server"}, "dialect: llama_server, now ik"),
        ({"options": {"kv_floor": "q4_0", "set": {"parallel": 1}}}, "options: other kv_floor"),
        ({"space": {"parameters": {}}}, "space: other parameters"),
    ],
)
def test_resume_with_other_conditions_is_an_error(tmp_path, changes, word):
    """A resume with another model, machine or purpose is an error that names the difference."""
    Study.create(tmp_path / "study", header()).close()

    with pytest.raises(UsageError, match=word):
        Study.resume(tmp_path / "study", header(**changes))


def test_resume_accepts_another_path_date_and_command(tmp_path):
    """Path, date and command line can differ, and so can tuples and lists."""
    Study.create(tmp_path / "study", header(space={"a": (1, 2)})).close()
    now = header(space={"a": [1, 2]}, model_path="/mnt/x.gguf", created_at=1.0, argv=("autofit",))

    Study.resume(tmp_path / "study", now).close()


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"schema": 1, "seed": 3}'])
def test_a_damaged_head_is_an_error_with_a_hint(tmp_path, content):
    """A study without a readable head is an error, and the hint mentions the trials."""
    Study.create(tmp_path / "study", header()).close()
    (tmp_path / "study/study.json").write_bytes(content)

    with pytest.raises(AutofitError, match="damaged") as caught:
        Study.open(tmp_path / "study")

    assert "trials/" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("created_at", None),
        ("created_at", "x"),
        ("model_path", None),
        ("model_name", 3),
        ("runtime_path", {}),
        ("dialect", 0),
        ("objective", None),
        ("seed", "x"),
        ("options", "x"),
        ("space", []),
        ("argv", [3]),
        ("workload", None),
        ("environment", []),
        ("result", True),
        ("result", [1]),
    ],
)
def test_a_head_with_a_value_of_another_kind_is_damaged(tmp_path, name, value):
    """A wrong type in the head is an error when the study is read."""
    Study.create(tmp_path / "study", header()).close()
    file = tmp_path / "study/study.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))

    with pytest.raises(AutofitError, match="damaged"):
        Study.open(tmp_path / "study")


def test_a_newer_study_is_an_error(tmp_path):
    """A study of a newer autofit is an error that asks for an upgrade."""
    Study.create(tmp_path / "study", header()).close()
    file = tmp_path / "study/study.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": 99}))

    with pytest.raises(AutofitError, match="newer autofit") as caught:
        Study.open(tmp_path / "study")

    assert "upgrade" in caught.value.hint
