"""Launches of real processes: outcomes that only counters or the process show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machine_fixtures import FakeMachine
from fakes.physics import Simulation
from runtime.launch_sample import CARD, HOST, launch, launcher, machine, small_model

from autofit.trial.candidate import Limits


class Holding:
    """A memory source that another program's kernel is not behind."""

    def __init__(self, source) -> None:
        self.source = source

    def read(self):
        """The counters without those of the host."""
        return {name: counter for name, counter in self.source.read().items() if name != "host"}


@pytest.fixture
def log_path(tmp_path):
    """Where the server writes."""
    return tmp_path / "server.log"


def beside(*_):
    """What a launch takes beside its buffers, by what an earlier one showed."""
    return {"CUDA0": 300.0 + 60.0 + 6.0}


def spilling(size_mib: float):
    """A machine whose driver spills, with a card of that size."""
    card = replace(CARD, total_mib=size_mib)
    return replace(machine(policy="spill"), devices=(card,))


def needed_mib(params):
    """What the candidate truly takes of a card that is large enough."""
    card = replace(CARD, total_mib=90000)
    simulation = Simulation(replace(machine(), devices=(card,)), small_model())
    run = simulation.truth({"n_gpu_layers": 99, "context": 4096, **params}, [(1024, 8)])
    return run.devices[0].used_mib


def test_spill_is_told_from_what_the_runtime_says_it_holds(tmp_path, log_path):
    """A server that runs without a word is found to lack memory on its card."""
    size = needed_mib({"n_cpu_moe": 4}) - 400
    fake = FakeMachine(tmp_path, spilling(size))

    result = launch(launcher(fake, unreported_mib=beside), log_path, {"n_cpu_moe": 4})

    assert result.outcome.kind == "spilled"
    assert result.outcome.device == "CUDA0"
    assert result.outcome.spilled_mib == pytest.approx(400, abs=10)


def test_spill_is_told_from_host_memory_lent_by_the_driver(tmp_path, log_path):
    """Without knowing anything of earlier launches, the driver's counter is enough."""
    size = needed_mib({"n_cpu_moe": 4}) - 200
    fake = FakeMachine(tmp_path, spilling(size), memory_words=("--host", "--lent"))

    result = launch(launcher(fake), log_path, {"n_cpu_moe": 4})

    assert result.outcome.kind == "spilled"
    assert result.outcome.spilled_mib == pytest.approx(200, abs=10)


def test_full_card_without_spill_is_completed(tmp_path, log_path):
    """The same card, where all of it fits to the last 20 MiB."""
    size = needed_mib({"n_cpu_moe": 4}) + 20
    fake = FakeMachine(tmp_path, spilling(size), memory_words=("--host", "--lent"))

    result = launch(launcher(fake, unreported_mib=beside), log_path, {"n_cpu_moe": 4})

    assert result.outcome.kind == "completed"
    assert result.measurement.free_mib["CUDA0"] == pytest.approx(20, abs=2)


def test_slow_candidate_is_no_spill(tmp_path, log_path):
    """One that takes twenty times as long on a full card has still completed."""
    size = needed_mib({"n_cpu_moe": 4}) + 5
    fake = FakeMachine(tmp_path, spilling(size))
    fake.fail("speed", 20)

    result = launch(launcher(fake, unreported_mib=beside), log_path, {"n_cpu_moe": 4})

    assert result.outcome.kind == "completed"


def test_unified_memory_is_never_said_to_have_spilled(tmp_path, log_path):
    """Used memory of a device that shares the host's tells nothing."""
    card = replace(CARD, name="MTL0", description="Apple M3", backend="Metal")
    fake = FakeMachine(tmp_path, replace(machine(policy="unified"), devices=(card,)))
    expected = {"MTL0": 4000.0}

    result = launch(
        launcher(fake, unreported_mib=lambda _: expected), log_path, {"devices": "MTL0"}
    )

    assert result.outcome.kind == "completed"


def test_kill_without_a_message_is_put_down_to_memory_where_that_was_short(tmp_path, log_path):
    """A machine without room for the weights has its kernel kill the server."""
    host = replace(HOST, ram_mib=1900, other_mib=800)
    fake = FakeMachine(tmp_path, replace(machine(), host=host))

    result = launch(launcher(fake), log_path, {"n_cpu_moe": 12, "load_mode": "none"})

    assert result.outcome.kind == "out_of_memory"
    assert result.outcome.where == "host"


def test_kill_that_no_kernel_counted_was_somebodys(tmp_path, log_path):
    """`kill -9` on a host with memory left is not for want of it."""
    fake = FakeMachine(tmp_path, machine())
    fake.fail("killed", "prompt")
    with_ = launcher(fake)
    with_.memory = Holding(with_.memory)

    result = launch(with_, log_path)

    assert result.outcome.kind == "crashed"
    assert result.outcome.reason == "killed"
    assert result.outcome.exit_status == -9


def test_port_taken_meanwhile_costs_a_second_start_only(tmp_path, log_path):
    """The candidate is not to blame; it is started again elsewhere, and that is said."""
    fake = FakeMachine(tmp_path, machine())
    fake.fail("port-in-use", launches=[1])

    result = launch(launcher(fake), log_path)

    assert result.outcome.kind == "completed"
    assert fake.launches == 2
    assert any("port" in note for note in result.notes)


def test_port_that_stays_taken_is_said(tmp_path, log_path):
    """Twice is enough."""
    fake = FakeMachine(tmp_path, machine())
    fake.fail("port-in-use")

    result = launch(launcher(fake), log_path)

    assert result.outcome.kind == "crashed"
    assert result.outcome.reason == "port_in_use"
    assert fake.launches == 2


def test_server_that_hangs_while_loading_is_told_from_a_slow_one(tmp_path, log_path):
    """It was given its time, and then did nothing any more."""
    fake = FakeMachine(tmp_path, machine())
    fake.fail("hang-load")

    result = launch(launcher(fake, limits=Limits(load_s=1.0)), log_path)

    assert result.outcome.kind == "crashed"
    assert result.outcome.reason == "hang"
    assert result.outcome.stage == "load"


def test_late_server_that_still_works_is_timed_out(tmp_path, log_path):
    """A wrapper that goes on working is slow, and no hang."""
    fake = FakeMachine(tmp_path, machine())
    fake.fail("hang-load")
    busy = "python3 -c 'while True: pass' & exec \"$@\""
    with_ = launcher(fake, limits=Limits(load_s=1.0), wrapper=("sh", "-c", busy, "busy"))

    result = launch(with_, log_path)

    assert result.outcome.kind == "timed_out"
    assert result.outcome.stage == "load"
    assert result.outcome.limit_s == 1.0


def test_memory_is_told_by_the_log_where_the_table_is_missing(tmp_path, log_path):
    """A server that died or whose build prints none still told its buffers."""
    fake = FakeMachine(tmp_path, machine())
    fake.fail("no-table")

    result = launch(launcher(fake), log_path, {"n_cpu_moe": 4})

    row = result.measurement.reported["CUDA0"]
    assert row.model_mib > 500
    assert row.context_mib > 0
    assert row.compute_mib > 0
