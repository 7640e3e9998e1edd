"""The document of machine knowledge: its form in JSON, and the parts of a study that it keeps.

The launches are kept and not what was concluded from them, so a later version can conclude more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

# The newest studies that a file keeps, and the most launches of each.
MOST_STUDIES = 30
MOST_LAUNCHES = 60

_Seconds = Annotated[float, Field(gt=1e-9, lt=1e6)]
_Bytes = Annotated[float, Field(ge=1, lt=1e15)]
_Mib = Annotated[float, Field(gt=-1e7, lt=1e7)]
# A search has a table of all numbers of host layers.
_Layers = Annotated[float, Field(ge=0, le=1000)]
_Count = Annotated[int, Field(ge=0, lt=1 << 31)]
_Text = Annotated[str, Field(max_length=1000)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)


class KnownMachine(_Part):
    """The parts of a machine that no update changes; all have to agree for knowledge to count."""

    cpu: _Text
    cpu_count: _Count
    memory_gib: float
    devices: tuple[_Text, ...] = Field(strict=False)
    links: tuple[_Text, ...] = Field((), strict=False)

    def differences(self, other: KnownMachine) -> list[str]:
        """Return the names of the facts that differ."""
        return [
            name for name in type(self).model_fields if getattr(self, name) != getattr(other, name)
        ]


class KnownModel(_Part):
    """The sizes of a model that decide its speed, as `search.problem.ModelTraffic` has them."""

    name: _Text
    digest: _Text
    layers: Annotated[int, Field(ge=1, le=1000)]
    movable_bytes: _Bytes
    read_bytes: _Bytes
    fixed_read_bytes: _Bytes
    kv_bytes: _Bytes


class KnownRequest(_Part):
    """A kind of request; `weight` is its share of all requests."""

    prompt_tokens: Annotated[int, Field(ge=1, lt=1 << 31)]
    predicted_tokens: Annotated[int, Field(ge=1, lt=1 << 31)]
    weight: Annotated[float, Field(gt=0, lt=1e9)] = 1.0


class KnownDevice(_Part):
    """The layers of a device, and those of them whose experts were in system RAM."""

    layers: _Layers
    host_layers: _Layers = 0


class KnownLaunch(_Part):
    """A launch that ran: effective settings, the layers of each device, seconds per token.

    `first_device` computes the prompts of host layers; `whole_host_layers` are in system RAM with
    all their weights; `is_divided` means that every layer is divided over the devices.
    """

    settings: dict[_Text, bool | int | float | _Text] = Field(max_length=200)
    devices: dict[_Text, KnownDevice] = Field(max_length=64)
    first_device: _Text = ""
    whole_host_layers: Annotated[int, Field(ge=0, le=1000)] = 0
    is_divided: bool = False
    prompt_s_per_token: _Seconds | None = None
    generated_s_per_token: _Seconds | None = None
    load_s: Annotated[float, Field(ge=0, lt=1e6)] | None = None


class KnownStudy(_Part):
    """A finished study.

    `id` distinguishes studies, so that a resumed one replaces itself. The margins are the device
    memory that was predicted to stay free, of launches that fitted and of those that ran out.
    """

    id: _Text
    finished_at: Annotated[float, Field(ge=0, lt=1e12)]
    build: _Text
    driver: _Text
    model: KnownModel
    context: Annotated[int, Field(ge=1, lt=1 << 31)]
    parallel: Annotated[int, Field(ge=1, lt=1 << 31)]
    requests: tuple[KnownRequest, ...] = Field(strict=False, min_length=1, max_length=100)
    launches: tuple[KnownLaunch, ...] = Field(strict=False, min_length=1, max_length=MOST_LAUNCHES)
    fitting_margins_mib: tuple[_Mib, ...] = Field((), strict=False, max_length=MOST_LAUNCHES)
    failing_margins_mib: tuple[_Mib, ...] = Field((), strict=False, max_length=MOST_LAUNCHES)

    @property
    def fastest(self) -> KnownLaunch:
        """The launch with the fewest seconds for all requests."""
        prompt = sum(one.weight * one.prompt_tokens for one in self.requests)
        predicted = sum(one.weight * one.predicted_tokens for one in self.requests)
        return min(
            self.launches,
            key=lambda one: (
                prompt * (one.prompt_s_per_token or 0.0)
                + predicted * (one.generated_s_per_token or 0.0)
            ),
        )


class KnowledgeDocument(_Part):
    """A file of machine knowledge, or the part of it that a study used."""

    schema_number: Literal[1] = Field(alias="schema")
    machine: KnownMachine
    studies: tuple[KnownStudy, ...] = Field((), strict=False, max_length=1000)

    def to_json(self) -> str:
        """Return the document as readable JSON."""
        return self.model_dump_json(indent=1, by_alias=True) + "\n"


def make_document(machine: KnownMachine, studies: Iterable[KnownStudy]) -> KnowledgeDocument:
    """Return the document of some studies of a machine."""
    return KnowledgeDocument(schema=1, machine=machine, studies=tuple(studies))
