"""`autofit sweep` on simulated machines, in real processes: the regressions of a night."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sweep_machine import Nights, found

pytestmark = pytest.mark.timeout(600)


class SecondNight:
    """A night on which every machine but one has a problem."""

    def __init__(self, folder) -> None:
        self.nights = nights = Nights(folder)
        nights.add("well", answers=True, boundary=True, rounds=2)
        nights.write()
        self.first = nights.sweep("--update-baseline")
        self.baseline_bytes = nights.baseline.stat().st_size
        grown = nights.add("grown", boundary=True)
        card = grown.machine.devices[0]
        grown.change(devices=(replace(card, context_mib=card.context_mib + 400),))
        nights.add("crashes").fail("segfault", "load")
        nights.add("rewords", answers=True).fail("wrong-text")
        nights.add("drops-a-flag").fail("reject-flag", "--n-cpu-moe")
        nights.add("hangs", time_out="5s").fail("hang-load", 600)
        nights.add("no-card", devices={"CUDA7": "8GiB"}, missing="skip")
        nights.use_baseline_settings()
        nights.write()
        nights.copy_baseline("well")
        self.junit = folder / "night.xml"
        self.done = nights.sweep("--junit", self.junit, "--summary", folder / "night.md")
        self.document = self.done.json

    def kinds(self, name: str) -> list[str]:
        """The kinds of regression of an entry."""
        return found(self.document, name)["kinds"]


@pytest.fixture(scope="module")
def second(tmp_path_factory) -> SecondNight:
    """Two nights for all tests of this module."""
    return SecondNight(tmp_path_factory.mktemp("sweep"))


def test_a_first_night_has_nothing_to_compare_with(second):
    """Without a baseline an entry is new, exit 0, and the baseline is written."""
    assert second.first.code == 0, second.first.err
    assert found(second.first.json, "well")["verdict"] == "new"
    assert second.baseline_bytes < 20_000


def test_an_unchanged_machine_has_no_regression(second):
    """An entry on an unchanged machine is the same in speed, memory, boundary and answers."""
    entry = found(second.document, "well")

    assert (entry["verdict"], entry["kinds"]) == ("same", [])
    judged = {m["metric"]: m["verdict"] for m in entry["metrics"] if m["verdict"] != "unknown"}
    assert set(judged.values()) == {"same"}
    assert {"request_s", "peak_mib CUDA0", "boundary single:CUDA0 f16", "answers"} <= set(judged)
    assert "well" not in second.document["regressions"]


def test_more_memory_moves_the_boundary(second):
    """With 400 MiB more the kept settings no longer fit; launches show that fewer layers do."""
    assert set(second.kinds("grown")) == {"new_failure", "boundary_moved"}
    metrics = {m["metric"]: m for m in found(second.document, "grown")["metrics"]}
    moved = metrics["boundary single:CUDA0 f16"]
    assert moved["now"] > moved["kept"]
    assert "out of memory" in metrics["outcome"]["words"]


def test_every_other_regression_is_named(second):
    """A crash, other answers, a removed flag and a hang have their own kinds."""
    assert second.kinds("crashes") == ["new_failure"]
    assert second.kinds("rewords") == ["output_changed"]
    assert second.kinds("drops-a-flag") == ["preset_rejected"]
    assert second.kinds("hangs") == ["new_failure"]
    words = found(second.document, "crashes")["metrics"][0]["words"]
    assert "crashed" in words


def test_a_hung_entry_costs_its_own_time_only(second):
    """It is killed after its time-out with its processes, and later entries run."""
    entry = found(second.document, "hangs")

    assert 5 <= entry["seconds"] < 50
    assert "longer than 5 s" in entry["metrics"][0]["words"]
    assert second.nights.machines["hangs"].owners == []


def test_missing_hardware_is_skipped(second):
    """An entry with a missing device is skipped, with the reason."""
    entry = found(second.document, "no-card")

    assert entry["verdict"] == "skipped"
    assert second.document["skipped"] == ["no-card"]
    assert "no device CUDA7" in entry["notes"][0]


def test_a_regression_ends_with_its_own_exit_code(second):
    """The exit code is 5, with the names on stderr and the requested reports."""
    assert second.done.code == 5
    assert "autofit: worse than before: grown, crashes" in second.done.err
    text = second.junit.read_text(encoding="utf-8")
    assert "autofit sweep" in text
    assert "--only crashes" in text
    assert "boundary moved" in second.junit.with_suffix(".md").read_text(encoding="utf-8")


def test_a_finished_sweep_is_judged_again_without_a_launch(second):
    """--resume of a finished sweep launches nothing and has the same verdict."""
    launches = second.nights.launches
    again = second.nights.sweep("--resume")

    assert second.nights.launches == launches
    assert again.code == 5
    assert again.json["regressions"] == second.document["regressions"]


def test_the_build_of_a_regression_is_found(second):
    """`bisect --night` takes the settings and the failure of an entry, and finds the build."""
    machines = second.nights.machines
    listing = second.nights.folder / "builds.txt"
    listing.write_text(
        f"b1 {machines['well'].server}\nb2 {machines['well'].server}\n"
        f"b3 {machines['crashes'].server}\n"
    )
    night = second.document["folder"]
    done = second.nights.program.run(
        *("bisect", "--night", night, "--entry", "crashes", "--builds", listing, "--json"),
        *("--good", "b1", "--bad", "b3", "--dialect", machines["well"].dialect),
        timeout_s=120,
    )

    assert done.code == 0, done.err
    assert done.json["quantity"] == "failure"
    assert done.json["changes"][0]["first_bad"] == "b3"
    assert done.json["differences"][0]["is_worse"]
