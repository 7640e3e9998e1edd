"""The setup of a run: a stop ends it with a hint."""

from __future__ import annotations

import shlex

import pytest
from study.study_sample import header

from autofit.cli.run_setup import describe_stop
from autofit.errors import Interrupted
from autofit.session.runner import resume_hint
from autofit.study.study_folder import Study


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("tune my.gguf --context 4096", "tune my.gguf --context 4096 --study {} --resume"),
        ("tune m.gguf --study s --resume", "tune m.gguf --study {} --resume"),
        ("tune m.gguf --study=s -- -ot x", "tune m.gguf --study {} --resume -- -ot x"),
    ],
)
def test_the_hint_of_a_stop_is_the_command_that_resumes(tmp_path, given, kept):
    """It has all options of the first command, and names the study once."""
    path = tmp_path / "study"
    made = header(argv=("/bin/autofit", *shlex.split(given)))
    with (
        Study.create(path, made, needed_mib=0) as study,
        pytest.raises(Interrupted) as caught,
        describe_stop(study),
    ):
        raise KeyboardInterrupt

    assert f"`autofit {kept.format(path)}`" in caught.value.hint
    assert "secrets" not in caught.value.hint


def test_the_hint_asks_for_hidden_secrets(tmp_path):
    """A command with a hidden secret cannot resume the study as it is."""
    made = header(argv=("autofit", "tune", "m.gguf", "--", "--api-key", "***"))
    with Study.create(tmp_path / "study", made, needed_mib=0) as study:
        assert "secrets" in resume_hint(study)
