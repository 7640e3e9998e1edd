"""A whole tune in which a variable enables prefetch, and slots shrink without an error."""

from __future__ import annotations

from pathlib import Path

import pytest
from autofit_program import AutofitProgram, Done
from expert_machine import SLOT_MIB, ExpertMachine
from fakes.running import RunningServer

from autofit.study.study_folder import Study

pytestmark = pytest.mark.timeout(180)
VARIABLE = "GGML_SCHED_PREFETCH_EXPERTS"


class Tuned:
    """A finished tune, its machine and its study."""

    def __init__(self, folder: Path) -> None:
        self.program = AutofitProgram(folder)
        self.machine = ExpertMachine(folder, "env", card_mib=2600.0)
        self.study = folder / "study"
        words = self.machine.words(self.study, max_launches=4, dialect=self.machine.dialect)
        # A slot more or less decides what fits, to the MiB.
        words = (*words, "--headroom", "0")
        self.done: Done = self.program.run(*words, "--no-answers", "--json")
        assert self.done.code == 0, self.done.err
        (self.cost,) = self.done.json["expert_memory"]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> Tuned:
    """One tune for all tests of this module."""
    return Tuned(tmp_path_factory.mktemp("experts"))


def test_fewer_slots_than_requested_are_out_of_memory(tuned):
    """A server that answers with fewer slots than requested is out of memory."""
    shrunk = [t for t in Study.open(tuned.study).trials() if t.outcome.kind != "completed"]

    assert shrunk
    for trial in shrunk:
        log = (tuned.study / "trials" / f"{trial.number:04d}.log").read_text()
        assert log.count("cudaMalloc failed: out of memory") == 1
        assert "prompt eval time" in log
        assert trial.outcome.kind == "out_of_memory"
        assert "4 prefetch slots of 72 MiB: 3 allocated" in trial.outcome.evidence
        assert tuned.done.json["winner"]["params"] != dict(trial.candidate.params)


def test_the_memory_of_slots_matches_the_device(tuned, tmp_path):
    """A server of the winner needs the reported memory at its first large batch."""
    winner = tuned.done.json["winner"]
    count = winner["params"]["prefetch_slots"]
    words = [word for word in winner["argv"][1:] if word != str(tuned.machine.model)]
    used = []
    for slots in ("0", str(count)):
        log = tmp_path / f"log-{slots}"
        words = [word for word in words if word != "--model"]
        with RunningServer(
            tuned.machine.server, tuned.machine.model, log, words, env={VARIABLE: slots}
        ) as server:
            server.wait_ready(60).complete([65] * 1500, 2)
            used.append(tuned.machine.memory()["CUDA0"][2])
            server.stop()

    assert winner["env"] == {VARIABLE: str(count)}
    assert tuned.cost["mib"] == {"CUDA0": count * SLOT_MIB}
    assert used[1] - used[0] == pytest.approx(count * SLOT_MIB)
    assert (tuned.cost["source"], tuned.cost["slots_taken"]) == ("memory", count)


def test_the_memory_of_slots_is_in_all_outputs(tuned):
    """It is at the end of the tune, in the report and in `show`; the last two have boundaries."""
    count = tuned.cost["value"]
    mib = f"{count * SLOT_MIB:.0f} MiB on CUDA0"
    shown = tuned.program.run("show", tuned.study)

    for text in (tuned.done.err, shown.out, (tuned.study / "report.md").read_text()):
        lines = [one for one in text.splitlines() if f"prefetch_slots {count}" in one]
        assert sum(mib in line for line in lines) == 1
        has_boundary = any(f"512, prefetch_slots {count}" in line for line in lines)
        assert has_boundary == (text is not tuned.done.err)
    assert mib in (tuned.study / "report.html").read_text()
