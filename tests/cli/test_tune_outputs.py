"""The files of a finished tune: no file that cannot be written loses the result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from autofit_program import AutofitProgram
from process_stage import wait_for
from tune_machine import TuneMachine

from autofit.presets.read_preset import read_preset
from autofit.study.study_folder import Study

pytestmark = pytest.mark.timeout(180)


def test_no_unwritable_file_loses_the_result(tmp_path):
    """The result is printed and each file named; a resume writes all files without a launch."""
    machine, program = TuneMachine(tmp_path, 3000.0), AutofitProgram(tmp_path)
    study = tmp_path / "study"
    words = [*machine.words(study, max_launches=1), "--no-answers", "--json"]
    head = study / "study.json"
    with program.start(*words) as run:
        wait_for((study / "trials/0001.json").exists)
        # A folder or file in the place of each, which not even root can replace.
        head.rename(tmp_path / "head")
        blocked = [head, study / "report.md", study / "report.html"]
        for place in blocked:
            place.mkdir()
        (study / "presets").touch()
        done = run.finish()

    assert done.code == 0, done.err
    assert done.json["winner"]["proven"]
    assert done.json["preset"] is None
    for name in ("the result", "report.md", "report.html", "presets/model.args"):
        assert f"notice: {name} was not written: " in done.err

    (study / "presets").unlink()
    for place in blocked:
        place.rmdir()
    (tmp_path / "head").rename(head)
    launches = machine.launches
    done = program.run(*words, "--resume")
    assert done.code == 0
    assert machine.launches == launches
    assert Path(done.json["preset"]).is_file()
    assert Study.open(study).result["winner"]["proven"]
    assert (study / "report.html").is_file()


@pytest.mark.parametrize(
    ("name", "value"), [("a;b #c", "-dash\\"), ("'quoted\" $HOME%h\\", "two\nlines")]
)
def test_a_format_that_cannot_hold_a_value_is_skipped(tmp_path, name, value):
    """It is named before the first launch, and the other presets have the value.

    Plotly fails here, too, which costs only the HTML report.
    """
    (tmp_path / "plotly.py").write_text("raise RuntimeError('broken')\n")
    machine, program = TuneMachine(tmp_path, 3000.0), AutofitProgram(tmp_path)
    machine.model = machine.model.rename(machine.folder / f"{name}.gguf")
    words = machine.words(tmp_path / "study", max_launches=1)
    done = program.run(
        *words, "--no-answers", "--json", "--", "--chat-template", value, PYTHONPATH=str(tmp_path)
    )

    assert done.code == 0, done.err
    notice = "there will be no preset in the format ini"
    assert notice in done.err.partition("#1 ")[0]
    assert any(notice in note for note in done.json["notes"])
    assert "notice: report.html was not written: RuntimeError: broken" in done.err
    assert (tmp_path / "study/report.md").is_file()
    presets = {path.suffix: path for path in (tmp_path / "study/presets").iterdir()}
    assert set(presets) == {".args", ".json"}
    assert done.json["preset"] == str(presets[".args"])
    for path in presets.values():
        argv = read_preset(str(path)).server.argv
        assert argv[argv.index("--model") + 1] == str(machine.model)
        assert argv[argv.index("--chat-template") + 1] == value
    written = json.loads((tmp_path / "study/study.json").read_text())["result"]
    assert written == done.json
