"""Inputs of the kinds that people report: each gets the right answer, and none a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_cases import ReportCase, find_differences, report_cases

from autofit.errors import UsageError
from autofit.model.synth.random_model import SynthSpec, write_model
from autofit.output.import_summary import import_document, import_script
from autofit.presets.preset_command import parse_preset_command
from autofit.presets.read_preset import read_preset
from autofit.runtime.diagnosis.diagnose import diagnose, diagnosis_to_dict
from autofit.runtime.dialect.dialect_file import load_dialect
from autofit.runtime.discovery.find_runtime import make_offline_runtime
from autofit.runtime.logs.log_line import read_lines

CASES = {f"{case.system}: {case.name}": case for case in report_cases()}
LOGS = [case for case in CASES.values() if case.run == "explain"]
FILES = [case for case in CASES.values() if case.run in ("import", "check") and case.files]
MODEL = SynthSpec(layers=4, experts=8, header_only=True)
# Characters that mean something in one of the formats.
SIGNS = [*"\"'`$(){}[]<>|&;#%\\=:,-\n\t \r\0\ufeff\ud800é", "${", "$(", "<<EOF\n", "[*]\n"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small model without weights."""
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    write_model(MODEL, path)
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """The cache of the runtime's answers, for all tests of this module."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _shared_cache(cli, cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.mark.parametrize("name", CASES)
def test_a_reported_input_gets_the_right_answer(cli, model, request, tmp_path, name):
    """The answer has the values, and the words for people, that the cause demands."""
    case = CASES[name]
    if case.run != "explain":
        request.getfixturevalue("llama_cpp")

    ended = cli(*case.words(tmp_path, model))

    assert list(find_differences(case, ended.code, ended.out, ended.err)) == []


def test_every_system_has_inputs():
    """At least five inputs are of each system, and all names are unique."""
    systems = [case.system for case in report_cases()]

    assert min(map(systems.count, set(systems))) >= 5
    assert len(CASES) == len(systems) > 200


def damaged(text: str, seed: int) -> str:
    """Return a text with a few lines or characters removed, repeated, moved or replaced."""
    rng = random.Random(seed)
    parts = text.splitlines(keepends=True) if rng.random() < 0.5 else list(text)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(parts) + 1)
        match rng.randrange(4):
            case 0:
                del parts[place : place + rng.randint(1, 9)]
            case 1:
                parts[place:place] = parts[max(0, place - 3) : place]
            case 2:
                parts.insert(place, rng.choice(SIGNS))
            case 3:
                parts.insert(place, "".join(parts[:place][-5:]).swapcase())
    return "".join(parts)


@given(case=st.sampled_from(LOGS), seed=st.integers(0, 1 << 32))
@settings(max_examples=150)
def test_a_damaged_log_has_a_diagnosis(case: ReportCase, seed: int):
    """Any log of these kinds has a diagnosis that can be written as JSON."""
    text = damaged("".join(case.files.values()), seed)
    stream = io.BytesIO(text.encode("utf-8", "surrogatepass"))

    diagnosis = diagnose(read_lines(stream), load_dialect("llama_server"))

    assert json.dumps(diagnosis_to_dict(diagnosis))


@given(case=st.sampled_from(FILES), seed=st.integers(0, 1 << 32))
@settings(max_examples=150)
def test_a_damaged_file_is_read_or_refused(case: ReportCase, seed: int):
    """Any file of these kinds is read, or refused with a message."""
    runtime = make_offline_runtime()
    with tempfile.TemporaryDirectory() as folder:
        case.words(Path(folder), Path(folder) / "small.gguf")
        path = Path(folder) / next(iter(case.files))
        text = damaged(path.read_text(case.encoding), seed)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))

        with contextlib.suppress(UsageError):
            preset = read_preset(str(path))
            found = parse_preset_command(preset, runtime, is_other_build=True)
            assert json.dumps(import_document(found))
            assert import_script(found)
