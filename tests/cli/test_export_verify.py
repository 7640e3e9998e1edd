"""`autofit export --verify` on the real llama-server."""

from __future__ import annotations

import json
import shutil
import signal

import pytest
from autofit_program import AutofitProgram
from process_stage import wait_for

from autofit.machine.lock import machine_lock
from autofit.model.synth.random_model import SynthSpec, write_model
from autofit.presets.formats.registry import FORMATS

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(120)]

SPEC = SynthSpec(layers=2, experts=4, used=2, embd=64, ff=32, vocab=512, ctx=1024, type="q8_0")
STARTS = "starts with these settings and answers a request"


@pytest.fixture
def make_plan(cli, llama_cpp, tmp_path):
    """Return a function that plans a small model and returns the file with the plan."""

    def make(*words: object, context: int = 512, name: str = "it's 5%n $HOME ä") -> object:
        model = tmp_path / f"{name}.gguf"
        write_model(SPEC, model)
        done = cli("plan", model, "--runtime", llama_cpp, "--context", context, "--json", *words)
        assert done.code == 0, done.err
        path = tmp_path / f"{name}.json"
        path.write_text(done.out)
        return path

    return make


def _checks(done) -> dict[str, bool | None]:
    return {
        check["name"]: check["passed"] for check in json.loads(done.out)["verification"]["checks"]
    }


def test_two_models_are_verified_in_the_router(cli, make_plan, tmp_path):
    """Both models of a file with [*] have the right options, load and answer."""
    plans = [make_plan(), make_plan("--set", "ubatch=128", context=768, name="b")]
    target = tmp_path / "models.ini"

    done = cli("export", *plans, "--format", "ini", "-o", target, "--verify", "--json")

    assert done.code == 0, done.err
    assert set(_checks(done).values()) == {True}
    assert len(_checks(done)) == 5
    assert "[*]" in target.read_text()


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("ini", "json")])
def test_every_format_is_verified(cli, make_plan, name):
    """A model with blanks, quotes, `%` and `$` in its name starts, with variables and wrapper."""
    plan = make_plan("--wrapper", "nice -n 1", "--env", "GGML_X=a %b $c")

    done = cli("export", plan, "--format", name, "--verify", "--json")

    assert done.code == 0, done.err
    checks = _checks(done)
    if name == "systemd" and not shutil.which("systemd-analyze"):
        assert checks == {"systemd-analyze verify": None}
        return
    if name in ("bat", "powershell"):  # nothing here can run them
        assert set(checks.values()) == {None}
        return
    assert set(checks.values()) == {True}
    if name not in ("systemd", "compose"):
        assert any(STARTS in check for check in checks)


def test_a_preset_that_fails_is_not_written(cli, make_plan, tmp_path):
    """A context that the server does not apply fails the check, and the older file stays."""
    plan, target = make_plan(context=4096, name="a"), tmp_path / "x"
    target.write_text("; mine\n")

    done = cli("export", plan, "--format", "ini", "-o", target, "--verify")

    assert done.code == 1
    assert "4096" in done.err
    assert "1024" in done.err
    assert target.read_text() == "; mine\n"


def test_json_has_the_failed_checks(cli, make_plan, tmp_path):
    """One document has the error and every check, with the server's own message."""
    plan = make_plan(name="a")
    (tmp_path / "a.gguf").write_bytes(b"GGUF, but broken")

    done = cli("export", plan, "--format", "llama-swap", "--verify", "--json")
    document = json.loads(done.out)

    assert done.code == 1
    assert document["error"]["kind"] == "failed"
    assert document["verification"]["passed"] is False
    assert [check["passed"] for check in document["verification"]["checks"]] == [True, True, False]
    assert "gguf" in document["verification"]["checks"][-1]["detail"]


def test_a_section_that_defaults_change_is_not_written(cli, make_plan, tmp_path):
    """An option that [*] of an existing file adds to the model fails the check."""
    target = tmp_path / "models.ini"
    target.write_text("[*]\nswa-full = true\n")

    done = cli(
        "export", make_plan(name="a"), "--format", "ini", "-o", target, "--merge", "--verify"
    )

    assert done.code == 1
    assert "added: --swa-full" in done.err
    assert target.read_text() == "[*]\nswa-full = true\n"


def test_a_machine_in_use_is_refused(cli, make_plan, tmp_path):
    """While another autofit measures, no server is started and no file written."""
    plan, target = make_plan(name="a"), tmp_path / "x"
    with machine_lock("results/other"):
        done = cli("export", plan, "--format", "args", "-o", target, "--verify")

    assert (done.code, target.exists()) == (4, False)
    assert "results/other" in done.err


def test_ctrl_c_leaves_nothing_behind(make_plan, tmp_path):
    """An interrupt during the start ends the server, and no file is left."""
    hang, begun = tmp_path / "hang.sh", tmp_path / "begun"
    hang.write_text(f"touch '{begun}'\nexec sleep 60\n")
    plan, target = make_plan("--wrapper", f"sh '{hang}'", name="a"), tmp_path / "x"

    words = ("export", plan, "--format", "ini", "-o", target, "--verify")
    with AutofitProgram(tmp_path).start(*words) as run:
        wait_for(begun.exists, 30)
        run.send(signal.SIGINT)
        done = run.finish()

    assert (done.code, target.exists()) == (130, False)
    assert not list(tmp_path.glob("autofit-export-*"))
