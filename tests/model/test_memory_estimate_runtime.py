"""Estimates for synthesized models, compared with the buffers of the real llama-server."""

from __future__ import annotations

import pytest
from model.synthesized import PUBLISHED_WIDTHS, compare_with_server
from real_llama_cpp import rpc_device

from autofit.model.sizes.inventory import read_inventory
from autofit.model.synth.random_model import write_model

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def device(llama_cpp):
    """Yield the address of a remote device."""
    with rpc_device(llama_cpp) as address:
        yield address


@pytest.mark.parametrize("arch", PUBLISHED_WIDTHS)
def test_every_buffer_matches_the_server(arch, llama_cpp, tmp_path, device):
    """With half of the experts hosted, all buffers match within 4 MiB."""
    path = tmp_path / "m.gguf"
    write_model(PUBLISHED_WIDTHS[arch], path)
    settings = {"context": 16384, "kv_type": "q8_0", "hosted": 2}
    model, log = read_inventory(path), tmp_path / "log"
    for row in compare_with_server(llama_cpp, model, log, [device], **settings):
        assert max(map(abs, row.errors)) < 4.5, row
