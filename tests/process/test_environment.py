"""The environment of a child process."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofit.process.environment import removed_variables, scrubbed_environment, system_config
from autofit.process.helper_program import run_to_end

USER = {
    "HOME": "/home/user",
    "PATH": "/usr/bin:/bin",
    "LD_LIBRARY_PATH": "/opt/lib",
    "CUDA_VISIBLE_DEVICES": "1",
    "VK_DRIVER_FILES": "/x.json",
    "HIP_VISIBLE_DEVICES": "0",
    "GGML_VK_VISIBLE_DEVICES": "1",
    "GGML_VK_ALLOW_SYSMEM_FALLBACK": "1",
    "GGML_CUDA_ENABLE_UNIFIED_MEMORY": "1",
    "LLAMA_ARG_CTX_SIZE": "512",
    "LLAMA_API_KEY": "secret",
    "LLAMA_CACHE": "/models",
    "CUDA_SCALE_LAUNCH_QUEUES": "4x",
    "FORK_SWITCH": "1",
}
GONE = (
    "CUDA_SCALE_LAUNCH_QUEUES",
    "GGML_CUDA_ENABLE_UNIFIED_MEMORY",
    "GGML_VK_ALLOW_SYSMEM_FALLBACK",
    "LLAMA_API_KEY",
    "LLAMA_ARG_CTX_SIZE",
)


def test_settings_are_removed_and_paths_stay():
    """Settings of the runtime are removed and named; paths and the selection of devices stay."""
    env = scrubbed_environment({}, environ=USER)

    assert removed_variables({}, environ=USER) == GONE
    assert set(USER) - set(env) == set(GONE)
    assert env["GGML_NO_BACKTRACE"] == "1"


def test_extra_variables_have_precedence():
    """A variable for this launch is set even if it would be removed otherwise."""
    extra = {"CUDA_SCALE_LAUNCH_QUEUES": "2x", "GGML_NO_BACKTRACE": "0"}

    env = scrubbed_environment(extra, environ=USER)

    assert env["CUDA_SCALE_LAUNCH_QUEUES"] == "2x"
    assert env["GGML_NO_BACKTRACE"] == "0"
    assert "CUDA_SCALE_LAUNCH_QUEUES" not in removed_variables(extra, environ=USER)


def test_parameters_of_a_dialect_are_removed():
    """A variable that is a parameter of the dialect is removed."""
    assert "FORK_SWITCH" not in scrubbed_environment({}, environ=USER, also_remove={"FORK_SWITCH"})


def test_user_configuration_is_hidden(tmp_path: Path):
    """llama.cpp does not find the user's settings, but other programs find theirs."""
    env = scrubbed_environment({}, environ=USER, config_home=tmp_path / "empty")

    assert env["XDG_CONFIG_HOME"] == str(tmp_path / "empty")
    assert env["XDG_CONFIG_DIRS"] == "/home/user/.config:/etc/xdg"


def test_system_configuration(tmp_path: Path):
    """A machine-wide settings file counts if it has content."""
    path = tmp_path / "config.ini"
    assert system_config(path) is None

    path.touch()
    assert system_config(path) is None

    path.write_text("ctx-size = 1024\n")
    assert system_config(path) == path


@pytest.mark.runtime
@pytest.mark.parametrize("kind", ["file", "variable"])
def test_a_real_runtime_ignores_user_settings(tmp_path: Path, llama_cpp: Path, kind: str):
    """llama-server fails on a user's invalid setting only without the scrubbed environment."""
    user = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    if kind == "file":
        settings = tmp_path / ".config" / "llama.cpp" / "config.ini"
        settings.parent.mkdir(parents=True)
        settings.write_text("ctx-size = many\n")
    else:
        user["LLAMA_ARG_CTX_SIZE"] = "many"
    argv = [str(llama_cpp / "llama-server"), "--version"]

    exposed = run_to_end(argv, env=user, timeout_s=50)
    scrubbed = run_to_end(argv, env=scrubbed_environment({}, environ=user), timeout_s=50)

    assert (exposed.returncode, scrubbed.returncode) == (1, 0)
