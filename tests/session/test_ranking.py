"""The preferred one of several equally fast candidates."""

from __future__ import annotations

from session.rounds_sample import trial_of

from autofit.session.ranking import Standing, headroom_mib, prefer
from autofit.trial.candidate import Candidate


def _standing(name, free_mib, **params):
    trials = tuple(trial_of(10.0, candidate=Candidate(params), free_mib=free) for free in free_mib)
    return Standing(name, "request_s", trials, {}, None, None, None)


def test_more_headroom_comes_first():
    """The least free memory of any launch decides."""
    spiky = _standing("spiky", [2000.0, 100.0])
    steady = _standing("steady", [500.0, 520.0])

    assert prefer([spiky, steady]).id == "steady"


def test_the_wider_kv_type_comes_next():
    """With the same headroom, but for a few MiB, the wider KV type wins."""
    narrow = _standing("narrow", [540.0], cache_type_k="q4_0", cache_type_v="q4_0")
    wide = _standing("wide", [500.0], cache_type_k="q8_0", cache_type_v="q8_0")

    assert prefer([narrow, wide]).id == "wide"


def test_the_first_wins_when_all_is_equal():
    """The order is that of their speeds."""
    assert prefer([_standing("a", [500.0]), _standing("b", [510.0])]).id == "a"


def test_unknown_headroom_does_not_count():
    """If a counter is missing, the KV type decides."""
    unknown = _standing("unknown", [None], cache_type_k="f16", cache_type_v="f16")
    known = _standing("known", [5000.0], cache_type_k="q8_0", cache_type_v="q8_0")

    assert prefer([known, unknown]).id == "unknown"


def test_the_hosts_memory_is_not_headroom():
    """Free memory of the host is not that of a device."""
    assert headroom_mib([trial_of(1.0, free_mib=700.0)]) == 700.0
    assert headroom_mib([trial_of(1.0, free_mib=None)]) is None
