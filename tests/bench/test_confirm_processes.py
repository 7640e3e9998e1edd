"""The confirmation on real processes: fake servers on a simulated, noisy machine."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial

import pytest
from fakes.machine import Device, Machine, Noise
from fakes.machine_fixtures import FakeMachine
from fakes.synthetic_model import ModelShape, build_model

from autofit.runtime.discovery.find_runtime import find_runtime
from autofit.runtime.server.launcher import Launcher
from autofit.runtime.server.request_plan import plan_measurement
from autofit.runtime.server.send_requests import PromptSource, read_prompt_text
from autofit.session.rounds import Contender, round_purpose, run_rounds
from autofit.statistics.stopping_rule import StoppingRule
from autofit.trial.candidate import Candidate, LaunchPlan
from autofit.trial.trial import Trial
from autofit.trial.workload import Request, Workload

WORKLOAD = Workload("sample", context=4096, parallel=1, requests=(Request(512, 65),))
MODEL = build_model(ModelShape(layers=12, experts=16, used=2, embd=1024, ff=512, vocab=512))


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of noise, the host layers of two candidates, and the verdicts that are right."""

    noise: Noise
    base: int
    other: int
    right: tuple[str, ...]


QUIET = Noise(launch_prompt=0.01, launch_decode=0.01)
NOISY = Noise(launch_prompt=0.15, launch_decode=0.15)
CASES = {
    "a gain without much noise": Case(QUIET, 12, 4, ("better",)),
    "a loss without much noise": Case(QUIET, 4, 12, ("worse",)),
    "equal without much noise": Case(QUIET, 6, 6, ("tie",)),
    "equal under noise": Case(NOISY, 6, 6, ("undecided", "tie")),
    "a gain under drift and bursts": Case(
        replace(QUIET, drift_share=0.1, burst_probability=0.1, burst_share=0.5),
        12,
        2,
        ("better",),
    ),
}


def _contender(name, host_layers, launcher, folder):
    candidate = Candidate({"n_gpu_layers": 99, "n_cpu_moe": host_layers, "context": 4096})

    def launch(number: int) -> Trial:
        plan = launcher.plan(candidate, as_served=False)
        assert isinstance(plan, LaunchPlan), plan
        result = launcher.launch(
            plan,
            plan_measurement(WORKLOAD, 512, repeats=3),
            log_path=folder / f"{name}-{number}.log",
            on_stage=lambda _: None,
        )
        return Trial(
            number=number,
            candidate=candidate,
            outcome=result.outcome,
            measurement=result.measurement,
            purpose=round_purpose(number, name),
        )

    return Contender(name, launch)


def _confirm(case: Case, folder, seed: int):
    machine = Machine("noisy", (Device("CUDA0", total_mib=8192.0),), noise=case.noise)
    fake = FakeMachine(folder, machine, seed=seed)
    launcher = Launcher(
        runtime=find_runtime(fake.server),
        model_path=fake.write_model(MODEL),
        workload=WORKLOAD,
        prompts=PromptSource(read_prompt_text(WORKLOAD)),
    )
    contender = partial(_contender, launcher=launcher, folder=folder)
    result = run_rounds(
        [contender("base", case.base), contender("other", case.other)],
        workload=WORKLOAD,
        metric="request_s",
        rng=random.Random(seed),
        rule=StoppingRule(),
    )
    return fake, result


def _assert_right(case, folder, seed=1):
    fake, result = _confirm(case, folder, seed)

    standing = result.standing("other")
    assert standing.dropped is None or standing.dropped.why == "slower", standing.dropped
    assert standing.against_baseline.verdict in case.right
    assert fake.launches == 2 * result.rounds
    assert fake.owners == []


@pytest.mark.timeout(120)
def test_a_gain_is_confirmed_on_real_processes(tmp_path):
    """Fresh processes in interleaved rounds show the gain, and none is left."""
    _assert_right(CASES["a gain without much noise"], tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_the_simulated_cases_hold_on_real_processes(name, tmp_path):
    """What the simulation shows of each kind of noise holds with servers started and stopped."""
    _assert_right(CASES[name], tmp_path, seed=3)
