"""Hypothesis strategies for trials and their parts."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

from hypothesis import strategies as st

from autofit.trial.candidate import PARAM_ORDER, Candidate
from autofit.trial.measurement import Measurement, MemoryReading, ReportedMemory, Sample
from autofit.trial.outcome import (
    Buffer,
    Completed,
    Crashed,
    CrashedReason,
    Incorrect,
    OutOfMemory,
    Rejected,
    RejectedReason,
    Skipped,
    Spilled,
    Stage,
    TimedOut,
    Where,
)
from autofit.trial.purpose import Phase, Role, Subject, TrialPurpose
from autofit.trial.trial import FIDELITIES, Overhead, Trial

TEXT = st.text(max_size=12)
NUMBER = st.floats(allow_nan=False, allow_infinity=False, width=32)
COUNT = st.integers(0, 10**9)
SECONDS = st.floats(0.001, 1e6)
NAMES = st.sampled_from([*PARAM_ORDER, "zeta", "alpha"])
MIB_BY_NAME = st.dictionaries(TEXT, st.none() | NUMBER, max_size=3)

params = st.dictionaries(
    NAMES, TEXT | st.integers(-(2**53), 2**53) | NUMBER | st.booleans(), max_size=8
)
candidates = params.map(Candidate)


def _one_of(literal: object) -> st.SearchStrategy:
    return st.sampled_from(get_args(literal))


stages = _one_of(Stage)
outcomes = st.one_of(
    st.builds(Completed, stage=stages, evidence=TEXT),
    st.builds(
        OutOfMemory,
        stage=stages,
        evidence=TEXT,
        where=_one_of(Where),
        buffer=st.none() | _one_of(Buffer),
        device=st.none() | TEXT,
        requested_mib=st.none() | NUMBER,
    ),
    st.builds(
        Spilled,
        stage=stages,
        evidence=TEXT,
        device=st.none() | TEXT,
        spilled_mib=st.none() | NUMBER,
    ),
    st.builds(Rejected, stage=stages, evidence=TEXT, reason=st.none() | _one_of(RejectedReason)),
    st.builds(TimedOut, stage=stages, evidence=TEXT, limit_s=st.none() | NUMBER),
    st.builds(Incorrect, stage=stages, evidence=TEXT),
    st.builds(
        Crashed,
        stage=stages,
        evidence=TEXT,
        reason=st.none() | _one_of(CrashedReason),
        exit_status=st.none() | st.integers(-64, 255),
    ),
    st.builds(Skipped, evidence=TEXT, stage=stages, because=st.none() | TEXT),
)

samples = st.builds(
    Sample,
    prompt_tokens=COUNT,
    prompt_s=SECONDS,
    ttft_s=SECONDS,
    predicted_tokens=COUNT,
    predicted_s=SECONDS,
    cached_tokens=COUNT,
    depth=COUNT,
    request=st.integers(0, 3),
    order=st.integers(0, 9),
    is_warmup=st.booleans(),
)
measurements = st.builds(
    Measurement,
    samples=st.lists(samples, max_size=3).map(tuple),
    load_s=st.none() | SECONDS,
    peak_mib=MIB_BY_NAME,
    free_mib=MIB_BY_NAME,
    applied=st.dictionaries(TEXT, TEXT | COUNT | NUMBER | st.booleans(), max_size=3),
    reported=st.dictionaries(
        TEXT,
        st.builds(
            ReportedMemory,
            **{field.name: NUMBER for field in fields(ReportedMemory)[:3]},
            free_mib=st.none() | NUMBER,
            unaccounted_mib=st.none() | NUMBER,
            total_mib=st.none() | NUMBER,
        ),
        max_size=2,
    ),
    readings=st.lists(
        st.builds(
            MemoryReading,
            at_s=SECONDS,
            device_used_mib=MIB_BY_NAME,
            device_free_mib=MIB_BY_NAME,
            process_mib=st.none() | NUMBER,
            host_available_mib=st.none() | NUMBER,
            major_faults=st.none() | COUNT,
        ),
        max_size=2,
    ).map(tuple),
)
purposes = st.builds(
    TrialPurpose,
    phase=_one_of(Phase),
    role=_one_of(Role),
    round=st.none() | COUNT,
    side=TEXT,
    subject=st.none() | _one_of(Subject),
    kv_types=st.none() | st.tuples(TEXT, TEXT),
    reason=TEXT,
)
trials = st.builds(
    Trial,
    number=COUNT,
    purpose=purposes,
    candidate=candidates,
    outcome=outcomes,
    layout=TEXT,
    is_verbatim=st.booleans(),
    argv=st.lists(TEXT, max_size=4).map(tuple),
    env=st.dictionaries(TEXT, TEXT, max_size=3),
    measurement=st.none() | measurements,
    started_at=SECONDS,
    seconds=SECONDS,
    notes=st.lists(TEXT, max_size=2).map(tuple),
    fidelity=st.none() | st.sampled_from(FIDELITIES),
    overhead=st.none() | st.builds(Overhead, COUNT, SECONDS, SECONDS),
)
