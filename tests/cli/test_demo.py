"""`autofit demo`: a tune of a small model, and examples."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec

import jsonschema
import pytest
from autofit_program import AutofitProgram
from cli.tune_document import RESULT as DOCUMENT
from output.tune_sample import RESULT, make_study
from session.task_sample import options

from autofit.cli.commands.demo import print_demo
from autofit.model.synth.random_model import SynthSpec, write_model
from autofit.study.study_folder import Study


@pytest.mark.parametrize("as_json", [False, True])
def test_the_result_comes_before_the_examples(capsys, tmp_path, as_json):
    """Both are on one stream; with --json, stdout has only the document."""
    model = tmp_path / "model.gguf"
    write_model(
        SynthSpec(layers=2, experts=4, used=2, embd=64, ff=32, vocab=512, type="f16"), model
    )
    study = make_study(tmp_path / "study")
    result = {**RESULT, "study": str(study.path)}
    own = replace(options(model, model), runtime=None)
    code = print_demo(result, study, own, as_json=as_json)

    printed = capsys.readouterr()
    shown = printed.err if as_json else printed.out
    places = [shown.index(word) for word in ("\nRECORDED", "\nPLANNED", "presets/winner.ini")]
    assert code == 0
    assert places == sorted(places)
    assert printed.err == "" or as_json
    assert not as_json or json.loads(printed.out) == result


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(not find_spec("xllamacpp"), reason="the extra `embedded` is not installed")
def test_the_demo_writes_preset_report_and_study(tmp_path):
    """A real demo ends with gain or tie, a preset, a report and a study, then the examples."""
    program = AutofitProgram(tmp_path)
    done = program.run("demo", "--json", "--study", tmp_path / "study", timeout_s=380)

    assert done.code == 0, done.err
    jsonschema.validate(done.json, DOCUMENT)
    assert done.json["winner"]["proven"] is True
    assert done.json["gain"] is not None
    study = Study.open(tmp_path / "study")
    assert (study.path / "report.md").stat().st_size > 500
    assert list((study.path / "presets").iterdir())
    assert {trial.phase for trial in study.trials()} >= {"baseline", "search", "prove"}
    assert "random weights" in done.err
    assert "RECORDED, not measured here" in done.err
    assert "PLANNED, nothing launched" in done.err
