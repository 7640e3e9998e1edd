"""Random records of nights, for property tests."""

from __future__ import annotations

from typing import get_args

from hypothesis import strategies as st

from autofit.quality.recorded_answer import RecordedAnswer
from autofit.runtime.server.client import TokenChoice
from autofit.sweep.entry_record import (
    BoundaryRow,
    EntryFailure,
    EntryRecord,
    EnvironmentSnapshot,
    LaunchValues,
    MeasuredSettings,
    Mode,
    Status,
)

# Bytes of paths that are no UTF-8 are surrogates of this range; no text has others.
escaped_bytes = st.sampled_from(["\udc80", "\udcff"])
texts = st.text(st.characters(codec="utf-8") | escaped_bytes, max_size=12)
figures = st.none() | st.floats(-1e6, 1e6)
figures_by_name = st.dictionaries(texts, figures, max_size=3)
launch = st.builds(LaunchValues, figures, figures, figures, figures, figures)
choice = st.builds(
    TokenChoice,
    st.integers(0, 300_000),
    st.none() | st.floats(-50, 0),
    st.dictionaries(st.integers(0, 300_000), st.floats(-50, 0), max_size=5),
)
answers = st.builds(
    RecordedAnswer,
    texts,
    st.lists(st.integers(0, 300_000), max_size=4).map(tuple),
    st.lists(choice, max_size=4).map(tuple),
)
surroundings = st.builds(
    EnvironmentSnapshot,
    driver=texts,
    build=texts,
    devices=st.lists(texts, max_size=2).map(tuple),
    clocks_mhz=figures_by_name,
    others_cores=figures,
    load_1m=figures,
    remarks=st.lists(texts, max_size=2).map(tuple),
)
counts = st.none() | st.integers(0, 99)
records = st.builds(
    EntryRecord,
    name=texts,
    mode=st.sampled_from(get_args(Mode)),
    date=texts,
    autofit_version=texts,
    status=st.sampled_from(get_args(Status)),
    failure=st.none() | st.builds(EntryFailure, texts, texts, texts, st.none() | texts),
    winner=st.none()
    | st.builds(
        MeasuredSettings,
        st.dictionaries(texts, texts | st.integers(-(10**15), 10**15) | st.booleans(), max_size=3),
        st.lists(texts, max_size=3).map(tuple),
        texts,
        st.dictionaries(texts, texts, max_size=2),
    ),
    launches=st.lists(launch, max_size=4).map(tuple),
    reference=st.lists(launch, max_size=4).map(tuple),
    peak_mib=figures_by_name,
    free_mib=figures_by_name,
    boundary=st.lists(
        st.builds(BoundaryRow, texts, texts, counts, counts, st.none() | texts, st.booleans()),
        max_size=2,
    ).map(tuple),
    answers=st.lists(answers, max_size=2).map(tuple),
    reference_answers=st.lists(answers, max_size=2).map(tuple),
    is_sparse=st.booleans(),
    environment=surroundings,
    seconds=st.floats(0, 1e6),
    reproduce=texts,
    notes=st.lists(texts, max_size=2).map(tuple),
)
