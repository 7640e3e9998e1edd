"""Replays of recorded tables, which contain few of all combinations of values."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from autofit.replay.recorded_table import read_table
from autofit.replay.replay_table import TableProblem, replay, summarize
from autofit.search.optuna_study import SearchStudy
from autofit.search.problem import Observation

ROOT = Path(__file__).parents[2]
# A search takes a second; shrinking would take minutes.
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
HEAD = (
    "# source: made up\nncmoe,batch,ubatch,ctk,ctv,tensor_split,prefetch_slots,load_mode,n_ctx,"
    "n_prompt,n_gen,pp_tps,tg_tps,status,vram_mib,notes\n"
)
ROWS = st.lists(
    st.tuples(
        st.integers(16, 40),
        st.sampled_from([2048, 4096, 8192]),
        st.sampled_from([512, 1024, 2048]),
        st.sampled_from(["f16", "q8_0"]),
        st.sampled_from(["none", "mmap"]),
        st.integers(100, 9000),
        st.booleans(),
    ),
    min_size=2,
    max_size=25,
)


@given(ROWS, st.integers(0, 3))
@settings(deadline=None, max_examples=8, phases=NO_SHRINKING)
def test_only_rows_of_the_table_are_launched(tmp_path_factory, rows, seed):
    """A sparse table is searched to its end, and some row is found."""
    text = HEAD
    sure = (20, 2048, 512, "q5_1", "none", 500, True)
    for layers, batch, ubatch, cache, mode, rate, is_ok in [*rows, sure]:
        measured = f"{rate},{rate // 90 + 1},ok" if is_ok else ",,oom_load"
        text += f"{layers},{batch},{ubatch},{cache},{cache},,,{mode},16384,2048,64,{measured},,\n"
    path = tmp_path_factory.mktemp("table") / "sparse.csv"
    path.write_text(text)
    table = TableProblem(read_table(path))

    run = replay(table, seed=seed, max_launches=2 * len(table.points))

    assert 0 < run.launches <= 2 * len(table.points)
    assert run.best_found is not None


@given(ROWS, st.integers(0, 3))
@settings(deadline=None, max_examples=8, phases=NO_SHRINKING)
def test_a_search_that_reached_98_percent_ends_there(tmp_path_factory, rows, seed):
    """A replay counts launches to 98% of the best only if its last pick is that good."""
    text = HEAD
    sure = (20, 2048, 512, "q5_1", "none", 500, True)
    for layers, batch, ubatch, cache, mode, rate, is_ok in [*rows, sure]:
        for noise in (1.0, 0.7):
            speed = f"{rate * noise},{rate * noise / 90 + 1},ok" if is_ok else ",,oom_load"
            text += f"{layers},{batch},{ubatch},{cache},{cache},,,{mode},16384,2048,64,{speed},,\n"
    path = tmp_path_factory.mktemp("table") / "noisy.csv"
    path.write_text(text)
    table = TableProblem(read_table(path))

    run = replay(table, seed=seed, max_launches=2 * len(table.points))

    assert (run.launches_to_98pct is not None) == table.is_good_enough(run.best_found)


def test_launches_are_null_only_if_most_seeds_miss():
    """The median counts a search that missed as later than all others."""
    text = Path("results/landscapes/rtx3070-8gb_qwen36-35b_kv.csv")
    table = TableProblem(read_table(ROOT / text))
    good = replay(table, seed=0, max_launches=None)
    missed = dataclasses.replace(good, launches_to_98pct=None)

    found = [
        summarize(table, [good] * hits + [missed] * (4 - hits))["launches_to_98pct"]
        for hits in (1, 2, 4)
    ]

    assert found == [None, good.launches_to_98pct, good.launches_to_98pct]


def test_a_recorded_row_is_not_launched_again(tmp_path):
    """A row without repeats is launched once, since another launch would return it again."""
    text = HEAD
    for layers in range(20, 30):
        for ubatch in (512, 1024):
            rates = f"{3000 - 50 * layers + ubatch / 10},{60 - layers}"
            text += f"{layers},2048,{ubatch},f16,f16,,,none,16384,2048,64,{rates},ok,,\n"
    path = tmp_path / "single.csv"
    path.write_text(text)
    table = TableProblem(read_table(path))
    launches = Counter()
    study = SearchStudy(table.problem(), seed=0)
    while (proposal := study.ask()) is not None:
        launches[tuple(proposal.point.items())] += 1
        row = table.repeats(proposal.point)[0]
        study.add(Observation(proposal.point, row.value("request_s")))

    assert max(launches.values()) == 1
