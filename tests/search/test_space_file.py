"""Search spaces and workloads as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofit.errors import UsageError
from autofit.search.space_file import cores_value, read_space, read_workload

ROOT = Path(__file__).parents[2]
SPACES = sorted(path.stem for path in (ROOT / "search_spaces").glob("*.yaml"))
WORKLOADS = sorted(path.stem for path in (ROOT / "search_spaces" / "workloads").glob("*.yaml"))


@pytest.mark.parametrize("name", SPACES)
def test_every_bundled_space_has_points(name: str) -> None:
    """A bundled space is found by its name and has points."""
    space = read_space(name, cores=8)

    assert space.name == name
    assert next(space.points(), None)


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_bundled_workload_has_requests(name: str) -> None:
    """A bundled workload is found by its name, and its text exists."""
    workload = read_workload(name)

    assert workload.requests
    assert not workload.text or Path(workload.text).is_file()


def test_cores_become_numbers() -> None:
    """Values with `cores` are read as numbers, each once."""
    axis = read_space("cpu", cores=2).axis("threads")

    assert axis is not None
    assert axis.values == (2, 1)


def test_all_cores_count_those_of_slower_kinds() -> None:
    """On a hybrid processor `all cores` is another number of threads, and elsewhere it is not."""
    hybrid = read_space("moe", cores=8, all_cores=24).axis("threads")
    equal = read_space("moe", cores=8, all_cores=8).axis("threads")

    assert hybrid is not None
    assert equal is not None
    assert hybrid.values == (8, 7, 4, 24)
    assert equal.values == (8, 7, 4)


@pytest.mark.parametrize(
    ("text", "cores", "number"),
    [("cores", 6, 6), ("cores - 1", 6, 5), ("cores/2", 6, 3), ("cores - 8", 6, 1)],
)
def test_cores_value(text: str, cores: int, number: int) -> None:
    """`cores`, `cores - N` and `cores / N` are at least 1."""
    assert cores_value(text, cores) == number


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        ("parameters:\n  threads: {values: [cores * 2]}\n", 2, "cores / N"),
        ("parameters:\n  layout: {values: [balanced]}\n", 1, "`layouts`"),
        ("parameters:\n  a: {values: [1], sets: [x]}\n  x: {values: [1]}\n", 1, "both set x"),
        ("layouts: [balanced]\nparameters:\n  n_cpu_moe: {values: [1]}\n", 2, "places layers"),
    ],
)
def test_contradictions_are_reported_with_their_line(
    tmp_path: Path, text: str, line: int, fault: str
) -> None:
    """A space that contradicts itself is rejected when the file is read."""
    path = tmp_path / "space.yaml"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(UsageError) as error:
        read_space(str(path), cores=4)

    assert f"{path}:{line}: " in error.value.message
    assert fault in error.value.message


def test_a_smaller_context_cuts_the_requests_in_proportion() -> None:
    """A smaller context keeps the ratio of prompt and generation."""
    whole = read_workload("agent")

    cut = read_workload("agent", context=8192)

    assert cut.context == 8192
    for request, before in zip(cut.requests, whole.requests, strict=True):
        assert request.prompt_tokens + request.predicted_tokens <= 8192
        share = before.prompt_tokens / before.predicted_tokens
        assert request.prompt_tokens / request.predicted_tokens == pytest.approx(share, rel=0.05)


def test_more_slots_cut_the_requests_in_proportion() -> None:
    """Requests fit into a slot, which has its share of the context."""
    workload = read_workload("chat", parallel=8)

    slot = workload.context // 8
    assert all(r.prompt_tokens + r.predicted_tokens <= slot for r in workload.requests)


def test_slots_without_room_are_reported_with_the_options():
    """The message has the options as given and the size of a slot."""
    with pytest.raises(UsageError) as caught:
        read_workload("chat", context=1024, parallel=4096)

    assert caught.value.message == (
        "--context 1024 with --parallel 4096: workload chat needs 2 tokens, "
        "but a slot has 0 (context / parallel)"
    )


@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf"])
def test_a_value_that_is_not_finite_is_reported_with_its_line(value, tmp_path):
    """NaN and infinity are faults of the file."""
    path = tmp_path / "s.yaml"
    path.write_text(f"parameters:\n  ubatch:\n    values:\n      - {value}\n")

    with pytest.raises(UsageError, match=r"s\.yaml:4: .*is not a finite number"):
        read_space(str(path), cores=4)


_REQUESTS = "requests:\n- prompt_tokens: 1\n  predicted_tokens: 1\n"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("space", f"parameters: {{ubatch: {{values: {list(range(1, 5000))}}}}}"),
        ("space", "parameters:\n" + "".join(f"  p{i}: {{values: [1]}}\n" for i in range(100))),
        ("space", f"layouts: {['balanced'] * 100}"),
        ("workload", f"context: {(1 << 63) - 1}\n{_REQUESTS}"),
        ("workload", f"context: 99\nparallel: {1 << 32}\n{_REQUESTS}"),
        ("workload", f"context: 99\n{_REQUESTS}  weight: .inf\n"),
        ("workload", f"context: 99\n{_REQUESTS}  weight: .nan\n"),
        ("workload", f"context: 99\n{_REQUESTS}" + _REQUESTS.partition("\n")[2] * 99),
    ],
)  # fmt: skip
def test_numbers_that_no_runtime_takes_are_reported(kind, text, tmp_path):
    """A file with very many values, or with a number beyond the runtime's, is faulty."""
    path = tmp_path / f"{kind}.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=rf"{kind}\.yaml:\d+: "):
        read_space(str(path), cores=4) if kind == "space" else read_workload(str(path))
