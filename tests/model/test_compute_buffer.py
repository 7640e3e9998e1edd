"""Compute buffers, compared with those of a CUDA server, and their properties."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model.compute_truth import BufferComparison, compare_buffers, models

from autofit.model.sizes.compute_graph import GraphLayer, GraphSettings, graph_bytes
from autofit.model.sizes.graph_allocator import Tensor, plan_buffers
from autofit.model.sizes.tensor_placement import HOST
from autofit.units import MIB

RUN = GraphSettings(
    n_embd=2048,
    n_vocab=32768,
    n_head=16,
    n_expert=256,
    n_expert_used=8,
    n_ff_exp=512,
    ubatch=2048,
    outputs=1,
    staging_device=0,
)
LAYER = GraphLayer(
    device=0,
    experts_on=0,
    expert_tensors=(150994944,) * 3,
    query=4096,
    n_head_kv=2,
    head_k=256,
    head_v=256,
    cells=16384,
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> list[BufferComparison]:
    """Return the whole table of reported buffers."""
    return list(compare_buffers(models(tmp_path_factory.mktemp("models"))))


def test_estimates_match_reported_buffers(rows):
    """Of 400 buffers all match within 3 % or 8 MiB, and half of them within 0.1 %."""
    assert len(rows) > 400
    assert [row for row in rows if not row.is_close] == []
    assert median(abs(row.error) for row in rows) < 0.001


@pytest.mark.parametrize("model", ["moe-32k", "moe-152k", "moe-768", "moe-512x10", "moe-2880"])
def test_estimates_with_host_experts_match(rows, model):
    """With host experts, where fragmentation is worst, the mean error is small."""
    hosted = [abs(r.error) for r in rows if r.model == model and "n_cpu_moe=0" not in r.settings]
    assert sum(hosted) / len(hosted) < 0.002


def on_device(layers, **changes) -> float:
    """Return the MiB on the first device."""
    return graph_bytes(tuple(layers), 0, replace(RUN, **changes))[0] / MIB


def test_more_equal_layers_need_no_more_memory():
    """Sixty equal layers need the same buffer as six."""
    assert on_device([LAYER] * 60) == on_device([LAYER] * 6)


def test_logits_for_every_token_are_counted():
    """The planner has logits for a whole ubatch, the server one row per slot."""
    assert on_device([LAYER] * 3, outputs=2048) > 256
    assert on_device([LAYER] * 3, n_vocab=151936) == on_device([LAYER] * 3)


def test_without_flash_attention_scores_grow_with_the_context():
    """16 heads x 2,048 tokens x 16,384 cells of f32 are 2 GiB."""
    assert on_device([LAYER] * 3, flash_attn=False) > 2048


def test_host_experts_are_staged_on_the_first_device():
    """Host experts of the second device are computed on the first; the second needs less."""
    far = replace(LAYER, device=1, experts_on=HOST)
    run = replace(RUN, ubatch=512)
    staged = graph_bytes((LAYER, LAYER, far, far), 1, run)
    kept = graph_bytes((LAYER, LAYER, *[replace(LAYER, device=1, experts_on=1)] * 2), 1, run)
    assert staged[0] >= kept[0] + LAYER.expert_tensors[0] * 0.6
    assert staged[1] < kept[1]


def test_without_staging_the_host_computes_its_experts():
    """The CPU computes host experts for remote devices, and needs their intermediate results."""
    hosted = replace(LAYER, experts_on=HOST)
    run = replace(RUN, ubatch=512, staging_device=None, inplace_devices=frozenset({0}))
    assert graph_bytes((hosted,) * 3, 0, run)[HOST] > 60 * MIB
    assert graph_bytes((LAYER,) * 3, 0, run)[HOST] < 40 * MIB


def test_pipeline_parallelism_needs_more_memory():
    """Four copies of masks and hidden states make every buffer larger."""
    layers = (LAYER, LAYER, replace(LAYER, device=1, experts_on=1))
    run = replace(RUN, ubatch=512)
    one = graph_bytes(layers, 1, run)
    four = graph_bytes(layers, 1, replace(run, copies=4))
    assert all(four[device] > one[device] for device in (HOST, 0, 1))


@given(
    st.sampled_from(["full", "swa", "mla", "recurrent", "none"]),
    st.sampled_from([256, 512, 1024]),
    st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_a_larger_ubatch_never_needs_less_memory(attention, ubatch, is_hosted):
    """A doubled ubatch never shrinks a buffer, for any kind of layer."""
    layer = replace(
        LAYER,
        attention=attention,
        experts_on=HOST if is_hosted else 0,
        channels=8192 if attention == "recurrent" else 0,
        head_k=576 if attention == "mla" else 256,
    )
    assert on_device([layer] * 3, ubatch=ubatch) <= on_device([layer] * 3, ubatch=2 * ubatch)


@given(
    st.lists(
        st.tuples(st.integers(1, 5000), st.integers(0, 4), st.booleans()), min_size=1, max_size=40
    )
)
@settings(max_examples=60)
def test_results_in_use_never_overlap(shape):
    """The buffer of any graph has room for all results that are in use at the same time."""
    nodes: list[Tensor] = []
    for nbytes, back, inplace in shape:
        sources = nodes[-1 - back :][:2] if nodes else []
        nodes.append(Tensor(0, nbytes, sources, inplace=inplace))
    last_use = {id(source): index for index, node in enumerate(nodes) for source in node.sources}
    needed = 0
    for index, node in enumerate(nodes):
        alive = [n for n in nodes[:index] if last_use.get(id(n), -1) >= index]
        reused = max((n.nbytes for n in node.sources if n.nbytes == node.nbytes), default=0)
        own = node.nbytes - (reused if node.inplace else 0)
        needed = max(needed, sum(n.nbytes for n in alive) + own)
    assert plan_buffers(nodes).get(0, 0) >= needed
