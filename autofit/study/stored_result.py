"""The form of a stored result, as far as other commands read it.

Every command stores its own keys. The model has those that are read again; others may be there.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Number = Annotated[float, Field(allow_inf_nan=False)]
_Amounts = dict[str, Number | None]
_Params = dict[str, bool | int | float | str]


class _Stored(BaseModel):
    """A part of a result."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Interval(_Stored):
    """An estimate or a speedup."""

    median: Number
    low: Number | None = None
    high: Number | None = None
    n: int | None = None


class _Side(_Stored):
    """A winner, a baseline, or a side of a comparison."""

    name: str = ""
    runtime: str = ""
    params: _Params = {}
    argv: list[str] = []
    env: dict[str, str] | None = None
    estimates: dict[str, _Interval] | None = None
    outcome: dict[str, Any] | str | None = None
    layout: str = ""
    peak_mib: _Amounts | None = None
    taken_mib: _Amounts | None = None
    free_mib: _Amounts | None = None
    first_request: dict[str, _Interval | None] = {}
    second_request: dict[str, _Interval | None] = {}
    load_s: _Interval | None = None
    trial: int | None = None


class _Winner(_Side):
    """A winner, which a server can be started from."""

    params: _Params
    argv: list[str] = Field(min_length=1)


class _Boundary(_Stored):
    """A row about a fit boundary."""

    layout: str = ""
    cache_type: str = ""
    fits: int | None = None
    fails: int | None = None
    ubatch: int | None = None
    outcome: dict[str, Any] | str | None = None
    params: _Params | None = None
    free_mib: _Amounts | None = None


class _Cliff(_Stored):
    """A row about a cliff."""

    ratio: Number | None = None
    low: Number | None = None
    high: Number | None = None


class _Front(_Stored):
    """A candidate that no other one beats in every respect."""

    params: _Params | None = None
    pp_per_s: Number | None = None
    tg_per_s: Number | None = None
    request_s: Number | None = None
    free_mib: _Amounts | None = None


class _SpentLaunches(_Stored):
    """The time of one phase and length of test."""

    phase: str
    fidelity: str | None
    launches: int
    seconds: Number


class _SpentQuestions(_Stored):
    """The time of memory estimates."""

    questions: int
    seconds: Number


class _SpentByFidelity(_Stored):
    """The time by length of test."""

    estimate: _SpentQuestions


class _Spent(_Stored):
    """The time of a run."""

    by_phase: list[_SpentLaunches]
    by_fidelity: _SpentByFidelity
    own_seconds: Number


class _ExpertMemory(_Stored):
    """A setting for experts in system RAM."""

    param: str
    value: bool | int | float | str
    time_ratio: Annotated[Number, Field(gt=0)] | None = None
    launches: int | None = None
    mib: dict[str, Number] | None = None
    slots_asked: int | None = None
    slots_taken: int | None = None


class _OthersCores(_Stored):
    """The cores that other processes kept busy."""

    high: Number


class _Conditions(_Stored):
    """The state of the machine."""

    words: list[str]
    others_cores: _OthersCores | None = None
    cores: int = 0


class _Rounds(_Stored):
    """The rounds of a tune."""

    max_rounds: int = 0


class _SearchEnding(_Stored):
    """The reason why a search ended."""

    expected_gain: Number | None = None


class StoredResult(_Stored):
    """A result in `study.json`."""

    baseline: _Side | None = None
    winner: _Winner | None = None
    gain: _Interval | None = None
    boundary: list[_Boundary] | None = None
    cliffs: list[_Cliff] | None = None
    pareto: list[_Front] | None = None
    launches: int = 0
    launches_by_phase: dict[str, int] | None = None
    seconds_by_phase: dict[str, Number] | None = None
    outcomes: dict[str, int] | None = None
    spent: _Spent | None = None
    seconds: Number | None = None
    search: _SearchEnding | None = None
    conditions: _Conditions | None = None
    confirmation: _Rounds | None = None
    expert_memory: list[_ExpertMemory] | None = None
    preset: str | None = None
    notes: list[str] | None = None
    words: list[str] = Field(default=[""], min_length=1)
    a: _Side | None = None
    b: _Side | None = None
    ratios: dict[str, _Interval | None] | None = None

    @model_validator(mode="after")
    def _has_both_sides(self) -> Self:
        if self.ratios is not None and (self.a is None or self.b is None):
            raise ValueError("a comparison must have both sides")
        return self
