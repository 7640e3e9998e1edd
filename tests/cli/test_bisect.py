"""`autofit bisect` on series of simulated builds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from fakes.machine import Device, Machine, Noise
from fakes.machine_fixtures import FakeMachine
from fakes.synthetic_model import ModelShape, build_model
from junitparser import JUnitXml

from autofit.model.synth.random_model import SynthSpec, write_model

MODEL = build_model(ModelShape(layers=12, experts=16, used=2, embd=1024, ff=512, vocab=512))
WORKLOAD = """\
name: sample
context: 4096
requests:
  - {prompt_tokens: 600, predicted_tokens: 24, weight: 1}
"""
MACHINE = Machine(
    "bisected",
    (Device("CUDA0", total_mib=8192.0),),
    noise=Noise(launch_prompt=0.01, launch_decode=0.01),
)


@pytest.fixture
def builds(tmp_path):
    """Return a function that makes a folder of builds, some of them with faults."""

    def make(names, **faults):
        folder = tmp_path / "builds"
        folder.mkdir()
        for name in names:
            fake = FakeMachine(tmp_path / f"own-{name}", MACHINE)
            for fault in faults.get(name, ()):
                fake.fail(*fault)
            shutil.copytree(fake.bin, folder / name)
        return folder

    return make


@pytest.fixture
def bisect(cli, tmp_path):
    """Return a function that runs `autofit bisect` on a command and returns its document."""
    workload = tmp_path / "sample.yaml"
    workload.write_text(WORKLOAD)
    fake = FakeMachine(tmp_path, MACHINE)
    model = fake.write_model(MODEL)
    preset = f"{fake.server} -m {model} -c 4096 -np 1 -ngl 99 --fit off -ncmoe 4"

    def run(*words, code=0):
        study = tmp_path / "study"
        ended = cli(
            *("bisect", preset, "--workload", workload, "--study", study, "--json"),
            *("--dialect", "llama_server", *words),
        )
        assert ended.code == code, ended.err
        return json.loads(ended.out) if ended.out else ended.err

    return run


def names(first, last):
    """Names of builds as a release has them: b9 comes before b10."""
    return [f"b{number}" for number in range(first, last + 1)]


def slow_from(first, all_names, factor=1.25):
    """The fault of builds that are slower from one of them on."""
    return {name: [("speed", factor)] for name in all_names[all_names.index(first) :]}


def test_first_slower_build_is_found(bisect, builds):
    """The first slower of 10 builds is found in fewer launches than with every build compared."""
    series = names(5, 14)
    found = bisect(
        *("--builds", builds(series, **slow_from("b11", series)), "--good", "b5", "--bad", "b14")
    )

    (change,) = found["changes"]
    assert (found["verdict"], change["last_good"], change["first_bad"]) == ("found", "b10", "b11")
    assert 0.7 < change["ratio"]["low"] <= change["ratio"]["median"] < 0.95
    assert change["is_proven"]
    assert change["probability"] > 0.95
    assert found["launches"] < 2 * 10 * 4
    untouched = [one["name"] for one in found["builds"] if not one["launches"]]
    assert untouched


def test_resumed_search_repeats_no_launch(bisect, builds, tmp_path):
    """A resume of a finished search reads every launch from the study."""
    series = names(1, 5)
    words = ("--builds", builds(series, **slow_from("b4", series)), "--good", "b1", "--bad", "b5")
    first = bisect(*words)
    trials = len(list((tmp_path / "study/trials").glob("????.json")))
    again = bisect(*words, "--resume")

    assert [c["first_bad"] for c in again["changes"]] == ["b4"]
    assert again["launches"] == first["launches"] == trials
    assert len(list((tmp_path / "study/trials").glob("????.json"))) == trials


def test_builds_that_do_not_start_are_skipped(bisect, builds):
    """Builds before the change that do not start are suspects with the first bad one."""
    series = names(1, 9)
    faults = slow_from("b6", series)
    for name in ("b4", "b5"):
        faults[name] = [("segfault",)]
    found = bisect("--builds", builds(series, **faults), "--good", "b1", "--bad", "b9")

    (change,) = found["changes"]
    assert change["suspects"] == ["b4", "b5", "b6"]
    assert found["skipped"] == ["b4", "b5"]
    assert change["last_good"] == "b3"


def test_first_failing_build_is_found(bisect, builds):
    """If the bad build crashes at a prompt, the first build that crashes there is found."""
    series = names(1, 5)
    faults = {name: [("segfault", "prompt")] for name in series[3:]}
    found = bisect("--builds", builds(series, **faults), "--good", "b1", "--bad", "b5")

    (change,) = found["changes"]
    assert (found["quantity"], change["first_bad"]) == ("failure", "b4")
    assert change["outcome"]["kind"] == "crashed"


def test_first_build_with_wrong_answers_is_found(bisect, builds):
    """If the bad build only answers otherwise, the first build with such answers is found."""
    series = names(1, 5)
    faults = {name: [("garbage",)] for name in series[4:]}
    found = bisect("--builds", builds(series, **faults), "--good", "b1", "--bad", "b5")

    assert (found["quantity"], found["changes"][0]["first_bad"]) == ("answers", "b5")


def test_equal_builds_have_no_change(bisect, builds):
    """If good and bad do not differ, nothing between them is launched, and the exit code is 3."""
    found = bisect(
        *("--builds", builds(names(1, 4)), "--good", "b1", "--bad", "b4"),
        *("--quantity", "tg", "--min-effect", "10"),
        code=3,
    )

    assert (found["verdict"], found["changes"]) == ("same", [])
    assert [one["launches"] for one in found["builds"]][1:3] == [0, 0]


def test_listed_builds_and_reports(bisect, builds, tmp_path):
    """Builds of a text file are searched, and JUnit and Markdown name the first bad one."""
    series = names(1, 5)
    folder = builds(series, **slow_from("b3", series))
    listing = tmp_path / "builds.txt"
    listing.write_text("# oldest first\n" + "".join(f"{n} builds/{n}\n" for n in series))
    junit, summary = tmp_path / "junit.xml", tmp_path / "summary.md"
    found = bisect(
        *("--builds", listing, "--good", "b1", "--bad", "b5", "--quantity", "pp"),
        *("--junit", junit, "--summary", summary),
    )

    assert folder.is_dir()
    assert found["changes"][0]["first_bad"] == "b3"
    assert JUnitXml.fromfile(str(junit)).failures == 1
    assert "b3" in summary.read_text()


def test_spent_budget_leaves_the_suspects(bisect, builds):
    """If the budget ends early, the most probable build is printed, and a resume finds it."""
    series = names(1, 6)
    words = ("--builds", builds(series, **slow_from("b4", series)), "--good", "b1", "--bad", "b6")
    first = bisect(*words, "--budget", "2s", code=1)
    again = bisect(*words, "--resume")

    assert (first["verdict"], first["is_out_of_time"]) == ("undecided", True)
    assert again["changes"][0]["first_bad"] == "b4"


@pytest.mark.parametrize(
    "words",
    [
        ("--builds", "BUILDS", "--good", "b3", "--bad", "b1"),
        ("--builds", "BUILDS", "--good", "b1", "--bad", "b7"),
        ("--builds", "BUILDS", "--good", "b1"),
        ("--builds", "BUILDS", "--good", "b", "--bad", "b3"),
        ("--good", "b1", "--bad", "b3"),
        ("--builds", "BUILDS", "--wheels", "x", "--good", "b1", "--bad", "b3"),
        ("--git", ".", "--good", "b1", "--bad", "b3"),
        ("--git", ".", "--build", "make", "--good", "b1", "--bad", "b3"),
    ],
)
def test_wrong_builds_are_refused(bisect, builds, words):
    """Builds that do not exist, have the wrong order or no source are a usage error."""
    folder = str(builds(names(1, 3)))
    message = bisect(*(folder if word == "BUILDS" else word for word in words), code=2)

    assert message["error"]["kind"] == "usage"
    assert message["error"]["hint"]


@pytest.mark.parametrize("fault", ["pipe", "long line", "bytes", "nothing"])
def test_faulty_list_of_builds_is_refused(bisect, tmp_path, fault):
    """A list that is no text file, or has other lines, is a usage error and is not waited for."""
    listing = tmp_path / "builds.txt"
    if fault == "pipe":
        os.mkfifo(listing)
    else:
        contents = {"long line": b"a b c\n", "bytes": b"\xff\xfe\0", "nothing": b"# none\n"}
        listing.write_bytes(contents[fault])
    message = bisect("--builds", listing, "--good", "b1", "--bad", "b2", code=2)

    assert message["error"]["kind"] == "usage"


def test_commits_of_a_repository_are_compiled_once(bisect, builds, tmp_path, monkeypatch):
    """A commit is compiled in a work tree of its own when it is first launched."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    series = names(1, 6)
    folder = builds(series, **slow_from("b4", series))
    repository = tmp_path / "llama.cpp"

    def git(*words):
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.invalid")
        run = ("git", "-C", str(repository), *identity, *words)
        return subprocess.run(run, check=True, capture_output=True, text=True).stdout.strip()

    repository.mkdir()
    git("init", "--quiet")
    commits = []
    for name in series:
        (repository / "which").write_text(name)
        git("add", "which")
        git("commit", "--quiet", "-m", name)
        commits.append(git("rev-parse", "HEAD"))
    log = tmp_path / "compiled"
    compiler = f"cat which >> {log}; echo >> {log}; cp -r {folder}/$(cat which) {{build}}/bin"
    found = bisect("--git", repository, "--build", compiler, "--good", commits[0], "--bad", "HEAD")

    assert commits[3].startswith(found["changes"][0]["first_bad"])
    compiled = log.read_text().split()
    assert sorted(compiled) == sorted(set(compiled))
    assert git("status", "--porcelain") == ""


@pytest.mark.runtime
@pytest.mark.timeout(300)
def test_real_server_that_loads_later_is_found(cli, llama_cpp, tmp_path):
    """Among real servers the first whose start takes two seconds longer is found."""
    model = tmp_path / "small.gguf"
    write_model(SynthSpec(layers=2, experts=4, used=2, embd=256, ff=256, vocab=1024), model)
    workload = tmp_path / "sample.yaml"
    workload.write_text(WORKLOAD.replace("600", "64").replace("24", "4").replace("4096", "1024"))
    for number in range(1, 7):
        build = tmp_path / f"builds/b{number}/llama-server"
        build.parent.mkdir(parents=True)
        delay = "[ $# -lt 4 ] || sleep 2; " if number > 3 else ""
        build.write_text(f'#!/bin/sh\n{delay}exec {llama_cpp / "llama-server"} "$@"\n')
        build.chmod(0o755)
    preset = f"llama-server -m {model} -c 1024 -t 1 --fit off"
    ended = cli(
        *("bisect", preset, "--builds", tmp_path / "builds", "--good", "b1", "--bad", "b6"),
        *("--quantity", "load_s", "--min-effect", "100", "--workload", workload),
        *("--study", tmp_path / "study", "--json"),
    )

    assert ended.code == 0, ended.err
    (change,) = json.loads(ended.out)["changes"]
    assert (change["last_good"], change["first_bad"]) == ("b3", "b4")
