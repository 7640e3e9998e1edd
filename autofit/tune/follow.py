"""A worker of a shared tune that does not lead: it searches until the leader has a result."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from autofit.fleet.shared_tune import SharedTune
from autofit.quality.quality_gate import has_poor_kv
from autofit.tune.explore import Exploration
from autofit.tune.pipeline import ask_planner


def follow(
    exploration: Exploration, shared: SharedTune, budget: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Search for the leader; return its result, or None once this worker leads.

    The leader measures the baseline, and decides alone after the search, because rounds are
    comparable only on one host. If it dies, the worker that joined next leads, and measures what
    follows the search again.

    Raises:
        Interrupted: the user stopped the run.
    """
    poor: tuple[tuple[str, str], ...] = ()
    is_prepared = False
    while True:
        exploration.take_shared()
        result = shared.find_result(budget)
        if result is not None or shared.leads:
            return result
        if not is_prepared:
            ask_planner(exploration)
            is_prepared = True
        if poor != shared.poor_kv:
            poor = shared.poor_kv
            exploration.exclude(partial(has_poor_kv, poor=poor))
        if not (shared.is_searching and exploration.launch_next()):
            shared.wait("the leader, which compares the best and proves the winner")
