"""Commands that run in a container."""

from __future__ import annotations

from autofit.presets.read_preset import read_preset


def test_variables_of_docker_run_are_read(tmp_path):
    """-e overrides --env-file; a name without a value, and a missing file, get notices."""
    file = tmp_path / "a.env"
    file.write_text("A=file\nB=file\n")

    server = read_preset(
        f"docker run --rm -e A=1 -e C --env-file {file} --env-file /gone x/llama.cpp -m a.gguf"
    ).server

    assert server.env == {"A": "1", "B": "file"}
    assert server.argv == ("llama-server", "-m", "a.gguf")
    assert sum(notice.startswith(("C ", "/gone ")) for notice in server.notices) == 2
