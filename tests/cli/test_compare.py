"""`autofit compare` on simulated machines: two presets, and one preset on two builds."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from autofit_program import AutofitProgram
from fakes.machine import Device, Machine, Noise, RuntimeTraits
from fakes.machine_fixtures import FakeMachine
from fakes.synthetic_model import ModelShape, build_model

from autofit.model.synth.random_model import SynthSpec, write_model

MODEL = build_model(ModelShape(layers=12, experts=16, used=2, embd=1024, ff=512, vocab=512))
WORKLOAD = """\
name: sample
context: 4096
requests:
  - {prompt_tokens: 600, predicted_tokens: 24, weight: 1}
"""
QUIET = Noise(launch_prompt=0.01, launch_decode=0.01)
MACHINE = Machine(
    "compared",
    (Device("CUDA0", total_mib=8192.0),),
    noise=QUIET,
    runtime=RuntimeTraits(kv_text_change={"q8_0": 0.0, "q4_0": 0.3}),
)


@pytest.fixture
def fake(tmp_path):
    """Return a simulated machine with a fast device and slow experts in host memory."""
    return FakeMachine(tmp_path, MACHINE)


@pytest.fixture
def compare(cli, fake, tmp_path):
    """Return a function that runs `autofit compare` and returns its document."""
    workload = tmp_path / "sample.yaml"
    workload.write_text(WORKLOAD)

    def run(*words, code=0, dialect="llama_server"):
        study = tmp_path / "study"
        ended = cli(
            *("compare", *words, "--workload", workload, "--study", study, "--json"),
            *("--dialect", dialect),
        )
        assert ended.code == code, ended.err
        return json.loads(ended.out)  # one document, whatever the exit code

    return run


@pytest.fixture
def served(fake):
    """Return a function that returns a launch command with some flags."""
    model = fake.write_model(MODEL)

    def words(flags: str, server=fake.server) -> str:
        return f"{server} -m {model} -c 4096 -np 1 -ngl 99 --fit off {flags}"

    return words


def test_faster_of_two_commands_is_better(compare, served, fake):
    """Fewer experts in host memory are faster, with an interval, and give the same answers."""
    # This dialect also reports the memory of devices.
    found = compare(served("-ncmoe 12"), served("-ncmoe 2"), "--rounds", 6, dialect=fake.dialect)

    assert (found["verdict"], found["because"]) == ("better", "speed")
    ratio = found["ratio"]
    assert 1 < ratio["low"] <= ratio["median"] <= ratio["high"]
    assert found["equality"]["verdict"] == "equal"
    assert found["b"]["params"]["n_cpu_moe"] == 2
    assert [found[side]["name"].split()[-1] for side in "ab"] == ["12", "2"]
    assert (
        found["b"]["estimates"]["tg_per_s"]["median"]
        > (found["a"]["estimates"]["tg_per_s"]["median"])
    )
    assert found["b"]["peak_mib"]["CUDA0"] > found["a"]["peak_mib"]["CUDA0"]
    assert found["launches"] == fake.launches == 2 * found["rounds"]
    assert fake.owners == []


def test_slower_side_fails_only_with_the_option(compare, served):
    """With --fail the exit code of a loss is 5, else 0."""
    words = [served("-ncmoe 2"), served("-ncmoe 12"), "--rounds", 5]

    assert compare(*words)["verdict"] == "worse"
    assert compare(*words, "--resume", "--fail", code=5)["verdict"] == "worse"


def test_equal_commands_are_a_tie(compare, served):
    """Without a difference none is claimed, and a note says that there is none."""
    found = compare(served("-ncmoe 6"), served("-ncmoe 6"), "--fail", "--min-effect", 15)

    assert found["verdict"] == "tie"
    assert any("same command" in note for note in found["notes"])


def test_first_request_is_measured_apart(compare, served, fake):
    """A build that is slow at first shows it in the first request only."""
    fake.change(noise=replace(QUIET, first_prompt_share=0.5))

    found = compare(served("-ncmoe 6"), served("-ncmoe 2"), "--rounds", 3)

    for side in (found["a"], found["b"]):
        first, second = (side[f"{which}_request"]["pp_per_s"] for which in ("first", "second"))
        assert first["median"] < 0.9 * second["median"]
    assert found["ratios"]["first_request_pp_per_s"]["n"] == 3


def test_slower_build_of_one_preset_is_worse(compare, served, fake, tmp_path):
    """A slower build with the same settings is worse, though its answers are the same."""
    fork = FakeMachine(tmp_path / "fork", MACHINE)
    fork.fail("speed", 3)

    found = compare(served("-ncmoe 6"), "--runtime-b", fork.server, "--rounds", 5)

    assert found["verdict"] == "worse"
    assert found["a"]["program"] == str(fake.server)
    assert found["b"]["program"] == str(fork.server)
    assert found["equality"]["identical"] == found["equality"]["prompts"] == 8


def test_build_with_wrong_answers_is_worse_however_fast(compare, served, fake, tmp_path):
    """Speed does not compensate wrong answers, and the first of them is shown."""
    fork = FakeMachine(tmp_path / "fork", MACHINE)
    fork.fail("garbage")
    fork.fail("speed", 0.3)

    found = compare(
        served("-ncmoe 6"), "--runtime-b", fork.server, "--rounds", 5, "--fail", code=5
    )

    assert (found["verdict"], found["because"], found["speed"]) == ("worse", "answers", "better")
    assert found["equality"]["first"]["prompt"] == 0


def test_narrower_kv_type_is_scored(compare, served):
    """KV types may change answers: the verdict is about speed, and there is a score."""
    found = compare(
        served("-ncmoe 6 -fa on"), served("-ncmoe 6 -fa on -ctk q4_0 -ctv q4_0"), "--rounds", 3
    )

    assert found["because"] == "speed"
    assert found["quality"]["agreement"] < 0.85
    assert found["quality"]["asked"] > 0
    assert found["answers"]["verdict"] == "poor"


def test_program_of_the_runtime_scores_kv_types(cli, tmp_path):
    """llama-perplexity in the folder of B's server scores B's KV type, as in a tune.

    Its launches are counted, and a resumed comparison makes none of them again.
    """
    machine = replace(MACHINE, runtime=RuntimeTraits(
        kv_text_change={"q8_0": 0.0, "q4_0": 0.3}, kv_logprob_error={"q8_0": 0.01, "q4_0": 0.25}
    ))  # fmt: skip
    scoring = FakeMachine(tmp_path, machine, with_perplexity=True)
    own = f"{scoring.server} -m {scoring.write_model(MODEL)} -c 4096 -np 1 -ngl 99 -ncmoe 6 -fa on"
    words = [f"{own} -ctk q8_0 -ctv q8_0", f"{own} -ctk q4_0 -ctv q4_0", "--rounds", 3]
    words += ["--context", 1024, "--study", tmp_path / "study", "--json"]

    found = json.loads(cli("compare", *words).out)
    launches = scoring.launches
    again = json.loads(cli("compare", *words, "--resume").out)

    assert found["quality"]["source"] == "llama-perplexity"
    assert found["answers"]["reference"] == "A (q8_0 KV)"
    assert (found["answers"]["verdict"], found["because"]) == ("poor", "speed")
    assert found["launches"] == launches == 2 * 3 + 2
    assert again["quality"] == found["quality"]
    assert scoring.launches == launches
    kept, scored = (
        json.loads(path.read_text()) for path in sorted(tmp_path.glob("study/trials/*.json"))[-2:]
    )
    kinds = [trial["argv"][trial["argv"].index("--cache-type-k") + 1] for trial in (kept, scored)]
    assert kinds == ["q8_0", "q4_0"]


def test_side_that_does_not_run_is_worse(compare, served, fake):
    """One round shows the failure, and its reason is in the result."""
    found = compare(served("-ncmoe 12"), served("-ncmoe 12 -c 999999"), "--parallel", 1)

    assert (found["verdict"], found["because"]) == ("worse", "failure")
    assert found["b"]["outcome"]["kind"] == "out_of_memory"
    assert found["launches"] == 2


@pytest.mark.parametrize("command", ["compare", "remeasure"])
def test_api_key_is_not_saved(served, fake, tmp_path, command):
    """An API key in a measured command is nowhere in the study.

    As a program of its own, because a study saves the command line of the program.
    """
    own = served("-ncmoe 6 --api-key hunter2")
    words = {"compare": [own, own], "remeasure": [fake.folder / "model.gguf", "--preset", own]}
    workload = tmp_path / "sample.yaml"
    workload.write_text(WORKLOAD)
    done = AutofitProgram(tmp_path).run(
        *(command, *words[command], "--workload", workload, "--dialect", fake.dialect),
        *("--runtime", fake.server, "--rounds", 3, "--study", tmp_path / "study"),
        timeout_s=100,
    )

    assert done.code == 0, done.err
    kept = [path for path in (tmp_path / "study").rglob("*") if path.suffix in {".json", ".md"}]
    assert kept
    assert not [path.name for path in kept if "hunter2" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("command", ["compare", "remeasure"])
def test_small_budget_is_noted_after_the_first_round(cli, served, fake, tmp_path, command):
    """The note has the launches that are needed, and is printed as well."""
    own = served("-ncmoe 6")
    words = {"compare": [own, own], "remeasure": [fake.folder / "model.gguf", "--preset", own]}
    workload = tmp_path / "sample.yaml"
    workload.write_text(WORKLOAD)

    ended = cli(
        *(command, *words[command], "--workload", workload, "--dialect", fake.dialect),
        *("--runtime", fake.server, "--rounds", 4, "--budget", "1s"),
        *("--study", tmp_path / "study", "--json"),
    )

    assert ended.code == 0, ended.err
    launches = {"compare": "it takes 6 ", "remeasure": "it takes 4 "}
    (note,) = (note for note in json.loads(ended.out)["notes"] if launches[command] in note)
    assert note in " ".join(ended.err.split())


def test_two_sides_that_do_not_run_have_no_winner(compare, served):
    """The exit code is 3, and the document has the reason."""
    found = compare(served("-c 999999"), served("-c 999999"), code=3)

    assert (found["verdict"], found["because"]) == ("undecided", "failure")


def test_resumed_comparison_launches_nothing_again(cli, served, fake, tmp_path):
    """It reads its rounds and answers from the study, with the same result."""
    words = [served("-ncmoe 12"), served("-ncmoe 2"), "--context", 1024, "--rounds", 3, "--json"]
    words += ["--study", tmp_path / "study"]
    first = json.loads(cli("compare", *words).out)
    launches = fake.launches

    again = json.loads(cli("compare", *words, "--resume").out)

    assert fake.launches == launches
    for key in ("verdict", "ratios", "answers", "a", "b"):
        assert again[key] == first[key]


def test_result_is_printed_as_a_table(cli, served, tmp_path):
    """Without --json the verdict and a table of both sides are on stdout."""
    ended = cli(
        *("compare", served("-ncmoe 12"), served("-ncmoe 2"), "--rounds", 2),
        *("--context", 1024, "--study", tmp_path / "study"),
    )

    assert ended.code == 0
    lines = ended.out.splitlines()
    assert lines[2].startswith("undecided")
    assert any(line.startswith("generation") for line in lines)
    assert any(line.startswith("left on CUDA0") for line in lines)
    assert len(lines) <= 20


@pytest.mark.runtime
def test_two_real_builds_give_equal_answers(cli, llama_cpp, tmp_path):
    """llama-server and the embedded build are measured, and their answers are equal."""
    model = tmp_path / "tiny.gguf"
    write_model(SynthSpec(layers=3, experts=8, used=2, embd=256, heads=4, vocab=600), model)
    server = f"{llama_cpp / 'llama-server'} -m {model} -t 1"
    embedded = f"{sys.executable} -m autofit.runtime.embedded -m {model} -t 1 -ub 128"

    ended = cli(
        *("compare", server, embedded, "--workload", "demo", "--context", 1024),
        *("--rounds", 1, "--study", tmp_path / "study", "--json"),
    )

    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert (found["verdict"], found["because"]) == ("undecided", "speed")
    assert found["answers"]["verdict"] in ("equal", "rounding")
    assert found["a"]["build"] != found["b"]["build"]
    assert found["b"]["runtime"].startswith("embedded")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.json", "other.json"], "no such preset: missing.json"),
        (["llama-server -m x.gguf"], "nothing to compare A with"),
        (["A", "B", "--resume"], "--resume needs --study"),
        (["A", "B", "--rounds", "0"], "rounds"),
    ],
)
def test_faulty_command_line_is_refused(cli, words, message):
    """Nothing is launched before the command line is checked."""
    ended = cli("compare", *words)

    assert ended.code == 2
    assert message in ended.err


def test_sides_with_different_numbers_of_slots_are_refused(cli, served):
    """Speeds with one slot and with four do not compare."""
    ended = cli("compare", served("-ncmoe 2"), served("-ncmoe 2").replace("-np 1", "-np 4"))

    assert ended.code == 2
    assert "with --parallel" in ended.err
