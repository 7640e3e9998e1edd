"""The baseline: its settings written out, its point of the search space, its warnings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from session.task_sample import problem_of, task
from trial.purpose_sample import purpose_of
from tune_machine import TuneMachine

from autofit.machine.cpu import Cores
from autofit.runtime.server.request_plan import plan_without_measurement
from autofit.search.space_file import read_workload
from autofit.session.task_setup import make_launcher, make_planner
from autofit.trial.candidate import Candidate
from autofit.trial.measurement import Measurement
from autofit.trial.outcome import Completed, Rejected
from autofit.trial.trial import Trial
from autofit.tune.baseline import (
    attention_warning,
    find_baseline_point,
    thread_warning,
    without_flash_attention,
    write_out_settings,
)

CPU_SPACE = """\
parameters:
  ubatch:
    values: [512, 128]
  cache_type:
    sets: [cache_type_k, cache_type_v]
    values: [q8_0, f16]
  load_mode:
    values: [none, mmap]
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> TuneMachine:
    """One card."""
    return TuneMachine(tmp_path_factory.mktemp("frozen"), 2600.0)


@pytest.fixture(scope="module")
def about(machine):
    """A task on one card."""
    workload = read_workload(str(machine.workload))
    return task(machine.model, machine.server, workload, space=str(machine.space))


def trial_of(about, applied: dict) -> Trial:
    """A baseline that ran with these settings."""
    return Trial(
        1,
        purpose_of("baseline"),
        about.baseline,
        Completed(),
        measurement=Measurement(applied=applied),
    )


def test_written_settings_run_the_same(about, machine, tmp_path):
    """The explicit candidate applies the settings and layers that the runtime's own fit chose."""
    with_ = make_launcher(about)

    def launch(candidate: Candidate, *, is_verbatim: bool):
        plan = with_.plan(candidate, is_verbatim=is_verbatim, as_served=True)
        return with_.launch(
            plan, plan_without_measurement(), log_path=tmp_path / "log",
            on_stage=lambda _: None,
        ).measurement  # fmt: skip

    own = launch(about.baseline, is_verbatim=True)
    baseline = replace(trial_of(about, {}), measurement=own)
    frozen = write_out_settings(about, baseline, make_planner(about))
    again = launch(frozen, is_verbatim=False)

    assert {**again.applied, "fit": own.applied["fit"]} == dict(own.applied)
    assert again.reported["CUDA0"].model_mib == pytest.approx(own.reported["CUDA0"].model_mib)
    assert {"ubatch", "batch", "flash_attn", "cache_type_k", "n_gpu_layers"} <= set(frozen.params)
    assert "fit_target" not in frozen.params


def test_the_users_settings_stay(about):
    """They replace reported settings; reported values that are no setting are left out."""
    baseline = replace(
        trial_of(about, {"ubatch": 256, "context": 4096, "flash_attn": "no such value"}),
        candidate=Candidate({"context": 2048, "parallel": 1, "fit_target": "1024", "threads": 3}),
    )

    assert dict(write_out_settings(about, baseline).params) == {
        "context": 2048, "parallel": 1, "ubatch": 256, "threads": 3,
    }  # fmt: skip


@pytest.fixture(scope="module")
def cpu(machine, tmp_path_factory):
    """The task on the processor alone."""
    space = tmp_path_factory.mktemp("spaces") / "cpu.yaml"
    space.write_text(CPU_SPACE)
    workload = read_workload(str(machine.workload))
    return task(machine.model, machine.server, workload, space=str(space))


@pytest.mark.parametrize(
    ("applied", "point"),
    [
        (
            {"ubatch": 128, "cache_type_k": "q8_0", "cache_type_v": "q8_0", "load_mode": "none"},
            {"ubatch": 128, "cache_type": "q8_0", "load_mode": "none"},
        ),
        # A value that is not reported is the dialect's default.
        (
            {"ubatch": 512, "load_mode": "mmap"},
            {"ubatch": 512, "cache_type": "f16", "load_mode": "mmap"},
        ),
        # Half of a pair, or a value that is not tried, is no point.
        ({"ubatch": 512, "load_mode": "mmap", "cache_type_k": "q8_0"}, None),
        ({"load_mode": "mmap", "ubatch": 64}, None),
    ],
)
def test_the_baseline_is_a_point_if_the_space_has_its_values(cpu, applied, point):
    """The search then uses its measurement."""
    problem = problem_of(cpu)

    assert find_baseline_point(cpu, problem, trial_of(cpu, applied)) == point


def test_a_placed_baseline_is_no_point(about):
    """The runtime's own fit places layers in its own way."""
    problem = problem_of(about)

    assert find_baseline_point(about, problem, trial_of(about, {})) is None


def test_a_failed_baseline_is_no_point(cpu):
    """It has no reported settings."""
    failed = replace(trial_of(cpu, {}), measurement=None)

    assert find_baseline_point(cpu, problem_of(cpu), failed) is None


@pytest.mark.parametrize(
    ("params", "applied", "words"),
    [
        ({}, {"threads_taken": 32}, "the baseline used 32 threads, but only 16"),
        ({}, {"threads_taken": 16}, ""),
        ({}, {}, ""),
        ({"threads": 32}, {"threads_taken": 32}, ""),
    ],
)
def test_more_threads_than_cores_are_noted(params, applied, words):
    """A runtime counts cores that a container does not allow; a user's choice has no note."""
    measured = Measurement(applied=applied)
    baseline = Trial(
        1, purpose_of("baseline"), Candidate(params), Completed(), measurement=measured
    )
    text = thread_warning(baseline, Cores(logical=32, usable=16, physical=8, performance=8))

    assert text.startswith(words)
    assert bool(text) == bool(words)


def test_a_failed_baseline_has_no_thread_warning():
    """It has no speed to compare with."""
    measured = Measurement(applied={"threads_taken": 32})
    failed = Trial(
        1,
        purpose_of("baseline"),
        Candidate({}),
        Rejected("load", "no", "not_applied"),
        measurement=measured,
    )

    assert thread_warning(failed, Cores(logical=32, usable=16, physical=8, performance=8)) == ""


@pytest.mark.parametrize(
    ("applied", "is_warned"),
    [({"flash_attn": "off"}, True), ({"flash_attn": "on"}, False), ({}, False)],
)
def test_flash_attention_that_the_runtime_switched_off_is_a_warning(about, applied, is_warned):
    """If the runtime's own choice is off, `on` may be far slower, and a note says so."""
    assert bool(attention_warning(about, trial_of(about, applied))) == is_warned


def test_flash_attention_that_the_user_switched_off_is_no_warning(about):
    """A command with the setting is the user's own choice."""
    own = trial_of(about, {"flash_attn": "off"})
    given = replace(own, candidate=own.candidate.with_params(flash_attn="off"))

    assert attention_warning(about, given) == ""
    assert without_flash_attention(about, given) is about


def test_only_what_the_space_has_is_tried_without_flash_attention(about):
    """A space whose KV types all need flash attention keeps it, and a note says what to do."""
    quantized = about.space.with_values("cache_type", lambda value: value == "q8_0")
    narrow = replace(about, space=quantized)
    baseline = trial_of(about, {"flash_attn": "off"})

    assert {p["flash_attn"] for p in without_flash_attention(about, baseline).space.points()} == {
        "off"
    }
    assert without_flash_attention(narrow, baseline) is narrow
    assert "--kv-floor f16" in attention_warning(narrow, baseline)
