"""Rounds that a poor KV type costs on a simulated machine."""

from __future__ import annotations

import pytest
from fakes.random_machine import random_case

from autofit.quality.quality_gate import QualityGate
from benchmarks.bench_kv import POOR, Comparison, LateGate
from benchmarks.search_machine import SearchMachine


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_poor_type_costs_no_rounds(tmp_path):
    """Scored with the winner it takes part in rounds that are in vain, scored first in none."""
    comparison = Comparison(SearchMachine(random_case(0), tmp_path), tmp_path, max_launches=30)

    first, last = (comparison.spent(one, POOR) for one in (QualityGate, LateGate))

    assert first.rounds_in_vain == 0
    assert last.rounds_in_vain > 0
    assert first.winner_s is not None
