"""Launches of real processes: outcomes that only counters or the process show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machine_fixtures import FakeMachine
from fakes.physics import Simulation
from runtime.launch_sample import CARD, HOST, launch, launcher, machine, small_model

from autofit.trial.candidate import Limits


class WithoutHost:
    """A memory source without the counters of the host."""

    def __init__(self, source) -> None:
        self.source = source

    def read(self):
        """Return the counters of the devices only."""
        return {name: counter for name, counter in self.source.read().items() if name != "host"}


@pytest.fixture
def log_path(tmp_path):
    """Return the path of the server's log."""
    return tmp_path / "server.log"


def unreported(*_):
    """Return the memory of a launch that is not in its buffers."""
    return {"CUDA0": 300.0 + 60.0 + 6.0}


def spilling(size_mib: float):
    """Return a machine whose driver spills, with a card of this size."""
    card = replace(CARD, total_mib=size_mib)
    return replace(machine(policy="spill"), devices=(card,))


def needed_mib(params):
    """Return the memory that the candidate uses of a card that is large enough."""
    card = replace(CARD, total_mib=90000)
    simulation = Simulation(replace(machine(), devices=(card,)), small_model())
    run = simulation.truth({"n_gpu_layers": 99, "context": 4096, **params}, [(1024, 8)])
    return run.devices[0].used_mib


def test_spill_is_found_by_the_reported_buffers(tmp_path, log_path):
    """A server that uses less of its card than it reports has spilled."""
    size = needed_mib({"n_cpu_moe": 4}) - 400
    fake = FakeMachine(tmp_path, spilling(size))

    result = launch(launcher(fake, unreported_mib=unreported), log_path, {"n_cpu_moe": 4})

    assert result.outcome.kind == "spilled"
    assert result.outcome.device == "CUDA0"
    assert result.outcome.spilled_mib == pytest.approx(400, abs=10)


def test_spill_is_found_by_the_drivers_counter(tmp_path, log_path):
    """The driver's counter of host memory shows a spill without earlier launches."""
    size = needed_mib({"n_cpu_moe": 4}) - 200
    fake = FakeMachine(tmp_path, spilling(size), memory_words=("--host", "--lent"))

    result = launch(launcher(fake), log_path, {"n_cpu_moe": 4})

    assert result.outcome.kind == "spilled"
    assert result.outcome.spilled_mib == pytest.approx(200, abs=10)


def test_full_card_without_spill_is_completed(tmp_path, log_path):
    """A launch that leaves 20 MiB free on its card is completed."""
    size = needed_mib({"n_cpu_moe": 4}) + 20
    fake = FakeMachine(tmp_path, spilling(size), memory_words=("--host", "--lent"))

    result = launch(launcher(fake, unreported_mib=unreported), log_path, {"n_cpu_moe": 4})

    assert result.outcome.kind == "completed"
    assert result.measurement.free_mib["CUDA0"] == pytest.approx(20, abs=2)


def test_slow_launch_is_completed(tmp_path, log_path):
    """A launch that is twenty times slower on a full card is completed."""
    size = needed_mib({"n_cpu_moe": 4}) + 5
    fake = FakeMachine(tmp_path, spilling(size))
    fake.fail("speed", 20)

    result = launch(launcher(fake, unreported_mib=unreported), log_path, {"n_cpu_moe": 4})

    assert result.outcome.kind == "completed"


def test_unified_memory_has_no_spill(tmp_path, log_path):
    """A device that shares the host's memory has no spill."""
    card = replace(CARD, name="MTL0", description="Apple M3", backend="Metal")
    fake = FakeMachine(tmp_path, replace(machine(policy="unified"), devices=(card,)))
    expected = {"MTL0": 4000.0}

    result = launch(
        launcher(fake, unreported_mib=lambda _: expected), log_path, {"devices": "MTL0"}
    )

    assert result.outcome.kind == "completed"


def test_kill_is_out_of_memory_if_the_host_was_full(tmp_path, log_path):
    """A server that the kernel kills on a full host is out of memory."""
    host = replace(HOST, ram_mib=1900, other_mib=800)
    fake = FakeMachine(tmp_path, replace(machine(), host=host))

    result = launch(launcher(fake), log_path, {"n_cpu_moe": 12, "load_mode": "none"})

    assert result.outcome.kind == "out_of_memory"
    assert result.outcome.where == "host"


def test_kill_on_a_host_with_machine_facts_is_a_crash(tmp_path, log_path):
    """`kill -9` on a host with free memory is not attributed to memory."""
    fake = FakeMachine(tmp_path, machine())
    fake.fail("killed", "prompt")
    made = launcher(fake)
    made.memory = WithoutHost(made.memory)

    result = launch(made, log_path)

    assert result.outcome.kind == "crashed"
    assert result.outcome.reason == "killed"
    assert result.outcome.exit_status == -9


def test_port_in_use_is_retried_once(tmp_path, log_path):
    """A server whose port is in use is started on another port, with a note."""
    fake = FakeMachine(tmp_path, machine())
    fake.fail("port-in-use", launches=[1])

    result = launch(launcher(fake), log_path)

    assert result.outcome.kind == "completed"
    assert fake.launches == 2
    assert any("port" in note for note in result.notes)


def test_port_in_use_twice_is_a_crash(tmp_path, log_path):
    """A server whose port is in use twice has crashed."""
    fake = FakeMachine(tmp_path, machine())
    fake.fail("port-in-use")

    result = launch(launcher(fake), log_path)

    assert result.outcome.kind == "crashed"
    assert result.outcome.reason == "port_in_use"
    assert fake.launches == 2


def test_server_that_hangs_while_loading_has_crashed(tmp_path, log_path):
    """A server that does nothing at the time limit hangs."""
    fake = FakeMachine(tmp_path, machine())
    fake.fail("hang-load")

    result = launch(launcher(fake, limits=Limits(load_s=1.0)), log_path)

    assert result.outcome.kind == "crashed"
    assert result.outcome.reason == "hang"
    assert result.outcome.stage == "load"


def test_slow_server_is_timed_out(tmp_path, log_path):
    """A server that still works at the time limit is timed out."""
    fake = FakeMachine(tmp_path, machine())
    fake.fail("hang-load")
    busy = "python3 -c 'while True: pass' & exec \"$@\""
    made = launcher(fake, limits=Limits(load_s=1.0), wrapper=("sh", "-c", busy, "busy"))

    result = launch(made, log_path)

    assert result.outcome.kind == "timed_out"
    assert result.outcome.stage == "load"
    assert result.outcome.limit_s == 1.0


def test_memory_is_read_from_buffers_without_a_table(tmp_path, log_path):
    """Without a memory table, the logged buffers are the reported memory."""
    fake = FakeMachine(tmp_path, machine())
    fake.fail("no-table")

    result = launch(launcher(fake), log_path, {"n_cpu_moe": 4})

    row = result.measurement.reported["CUDA0"]
    assert row.model_mib > 500
    assert row.context_mib > 0
    assert row.compute_mib > 0
