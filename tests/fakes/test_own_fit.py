"""The simulated runtime's own fit works, and gives up, where llama.cpp's does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.ledger import Ledger
from fakes.machine import Machine
from fakes.own_fit import fit
from fakes.physics import Simulation


def fitted(machine: Machine, model, **params):
    """Return the parameters that the fit chooses on an idle machine."""
    memory = Ledger(machine)
    return fit(params, machine, model, [memory.free_mib(i) for i in range(len(machine.devices))])


def test_it_leaves_its_margin_on_every_device(machine: Machine, model):
    """What the fit places leaves about a GiB free on each device."""
    done = fitted(machine, model, context=4096, parallel=1)
    run = Simulation(machine, model).truth(done.params, [(16, 2)])

    assert done.is_fitted
    assert run.failure is None
    assert all(device.free_mib >= 1024 for device in run.devices)


def test_the_last_device_keeps_the_layers_with_host_experts(machine: Machine, model):
    """Whole layers fill devices from the first; overrides name layers at the end."""
    bigger = replace(machine, devices=tuple(
        replace(d, total_mib=d.total_mib + 300) for d in machine.devices))  # fmt: skip
    done = fitted(bigger, model, context=4096, parallel=1)
    first, _ = (int(n) for n in done.params["tensor_split"].split(","))
    named = [int(rule.split(".")[1][:-1]) for rule in done.params["override_tensor"].split(",")]

    assert done.params["n_gpu_layers"] == model.units
    assert min(named) >= first - 1


def test_nothing_changes_where_all_fits(machine: Machine, model):
    """With room to spare the parameters stay as they are."""
    roomy = replace(machine, devices=tuple(replace(d, total_mib=9000) for d in machine.devices))

    assert fitted(roomy, model, context=4096, parallel=1).params == {
        "context": 4096, "parallel": 1}  # fmt: skip


def test_an_unset_context_is_shortened_first(machine: Machine, model):
    """Without -c the context shrinks before any layer moves."""
    done = fitted(machine, model, parallel=1)

    assert done.params["context"] < model.context_train
    assert any("context size reduced from" in text for _, text in done.log)


@pytest.mark.parametrize("param", ["n_gpu_layers", "n_cpu_moe", "tensor_split"])
def test_it_gives_up_where_layers_were_placed(machine: Machine, model, param: str):
    """A setting about layers makes it abort with a warning and change nothing."""
    value = {"tensor_split": "1,1", "n_gpu_layers": 99}.get(param, 3)
    asked = {"context": 4096, "parallel": 1, param: value}
    done = fitted(machine, model, **asked)

    assert not done.is_fitted
    assert done.params == asked
    assert done.log[-1][0] == "W"
    assert "already set by user" in done.log[-1][1]
