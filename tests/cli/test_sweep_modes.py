"""The modes of a sweep's entries on simulated machines, in real processes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from fakes.machine import RuntimeTraits
from sweep_machine import SERVED, Nights, found
from tune_machine import TuneMachine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def nights(tmp_path):
    """A suite without entries."""
    return Nights(tmp_path)


def test_two_builds_are_compared_in_one_night(nights, tmp_path):
    """Without a baseline: one fork is slower, one has other answers, one is the same."""
    for name, fault in (("slow", ("speed", 1.5)), ("odd", ("wrong-text",)), ("same", None)):
        machine = nights.add(
            name, mode="compare", rounds=5, answers=True, against=str(tmp_path / "old")
        )
        nights.entries[name]["against"] = str(TuneMachine(tmp_path / f"old-{name}", 2600.0).server)
        if fault:
            machine.fail(*fault)
    nights.write()
    done = nights.sweep(timeout_s=800)

    assert done.code == 5, done.err
    assert "slower" in found(done.json, "slow")["kinds"]
    assert found(done.json, "odd")["kinds"] == ["output_changed"]
    assert found(done.json, "same")["verdict"] == "same"
    speed = next(m for m in found(done.json, "slow")["metrics"] if m["metric"] == "request_s")
    assert speed["against"] == "reference"
    assert speed["ratio"] == pytest.approx(1 / 1.5, rel=0.1)


def test_a_tune_also_launches_the_kept_settings(nights):
    """If the settings of the baseline no longer fit, that is a regression of the tune."""
    machine = nights.add("tuned", mode="tune", preset=None, budget="60s", max_launches=4,
                         boundary=True)  # fmt: skip
    nights.entries["tuned"] = {k: v for k, v in nights.entries["tuned"].items() if v is not None}
    nights.write()
    first = nights.sweep("--update-baseline", timeout_s=400)
    assert first.code == 0, first.err
    card = machine.machine.devices[0]
    machine.change(devices=(replace(card, context_mib=card.context_mib + 400),))
    done = nights.sweep(timeout_s=400)

    assert done.code == 5, done.err
    entry = found(done.json, "tuned")
    assert set(entry["kinds"]) == {"new_failure", "boundary_moved"}
    assert any("tonight's tune has found other" in note for note in entry["notes"])


def test_a_removed_flag_is_a_rejected_preset(nights, tmp_path):
    """A build without a flag of the kept settings rejects them."""
    machine = nights.add("fork", preset=f"{SERVED} --prefetch-experts-slots 2")
    machine.change(runtime=RuntimeTraits(prefetch="slots"))
    machine.dialect.write_text(machine._dialect())
    nights.write()
    first = nights.sweep("--update-baseline")
    assert first.code == 0, first.err
    machine.change(runtime=RuntimeTraits())
    nights.use_baseline_settings()
    nights.write()
    done = nights.sweep()

    assert done.code == 5, done.err
    assert found(done.json, "fork")["kinds"] == ["preset_rejected"]


def test_an_old_build_is_measured_with_the_new_one(nights, tmp_path):
    """On a slow night both builds are slow, so there is no regression."""
    old = TuneMachine(tmp_path / "old", 2600.0)
    machine = nights.add("served", rounds=4, against=str(old.server))
    nights.write()
    first = nights.sweep("--update-baseline")
    assert first.code == 0, first.err
    for one in (old, machine):
        one.fail("speed", 1.3)
    done = nights.sweep()

    assert done.code == 0, done.err
    assert found(done.json, "served")["kinds"] == []
    old.server.rename(old.server.with_name("gone"))
    alone = nights.sweep()
    assert "slower" in found(alone.json, "served")["kinds"]
    assert any("does not exist" in note for note in found(alone.json, "served")["notes"])


def test_a_short_night_leaves_a_boundary_open(nights):
    """If launches are slow, the boundary stays open, with a note."""
    machine = nights.add("slow", boundary=True, budget="5m")
    machine.fail("slow-load", 4)
    nights.write(budget="8s")
    done = nights.sweep("--update-baseline")

    assert done.code == 0, done.err
    entry = found(done.json, "slow")
    assert "budget used up before 1 of 1 fit boundaries were found" in entry["notes"]
    kept = json.loads(nights.baseline.read_text(encoding="utf-8"))["entries"]["slow"]["record"]
    assert kept["boundary"] == []
    assert machine.owners == []
