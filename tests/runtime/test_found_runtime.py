"""The build and the supported settings of a runtime."""

from __future__ import annotations

import pytest
from runtime.sample_programs import FORK, IK, SERVER, runtime_of

from autofit.runtime.dialect.dialect_file import load_dialect
from autofit.runtime.discovery.found_runtime import read_version

ASK = load_dialect("llama_server").ask


@pytest.mark.parametrize(
    ("text", "version", "build", "commit"),
    [
        ("version: 0.5.0-dev (build 11434, commit 1a2b3c4)\nbuilt", "0.5.0-dev", 11434, "1a2b3c4"),
        ("version: 0.6.0-dev (build 0, commit unknown)\n", "0.6.0-dev", 0, "unknown"),
        ("version: 6123 (79c1160b)\nbuilt with cc", None, 6123, "79c1160b"),
        ("something else", None, None, None),
    ],
)
def test_versions_are_read(
    text: str, version: str | None, build: int | None, commit: str | None
) -> None:
    """Version lines of new and old builds are read, and other text is kept."""
    read = read_version(text, ASK.version_patterns)
    assert (read.version, read.build, read.commit) == (version, build, commit)
    assert read.text == text.strip()


def test_supported_settings_are_those_of_the_build() -> None:
    """Parameters, values and KV types are those of the build, not those of the dialect."""
    new, old, ik = (
        runtime_of("llama_server", SERVER),
        runtime_of("llama_server", FORK),
        runtime_of("ik_llama_server", IK),
    )
    assert "n_cpu_ffn" in new.parameters
    assert "n_cpu_ffn" not in old.parameters
    assert "moe_cache_mib" not in new.parameters
    assert "override_tensor" in ik.parameters
    assert new.supports("load_mode", "dio")
    assert not old.supports("load_mode", "dio")
    assert "q6_0" in ik.kv_types
    assert "q6_0" not in new.kv_types
    assert new.values("context") == ()
    assert new.supports("repack", False)
