"""What a child may see of the user's environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofit.process import removed_variables, run, scrubbed_environment, system_config

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


def test_settings_go_and_the_machine_stays():
    """Settings of the runtime are removed and named; paths and device selection stay."""
    env = scrubbed_environment({}, environ=USER)

    assert removed_variables({}, environ=USER) == GONE
    assert set(USER) - set(env) == set(GONE)
    assert env["GGML_NO_BACKTRACE"] == "1"


def test_what_was_asked_for_wins():
    """A variable given for this launch is set, even one that would be removed."""
    extra = {"CUDA_SCALE_LAUNCH_QUEUES": "2x", "GGML_NO_BACKTRACE": "0"}

    env = scrubbed_environment(extra, environ=USER)

    assert env["CUDA_SCALE_LAUNCH_QUEUES"] == "2x"
    assert env["GGML_NO_BACKTRACE"] == "0"
    assert "CUDA_SCALE_LAUNCH_QUEUES" not in removed_variables(extra, environ=USER)


def test_parameters_of_a_dialect_go_too():
    """A variable that is a parameter of the dialect is removed."""
    assert "FORK_SWITCH" not in scrubbed_environment({}, environ=USER, also_remove={"FORK_SWITCH"})


def test_user_configuration_is_out_of_reach(tmp_path: Path):
    """The user's llama.cpp settings are not where llama.cpp looks, but others find theirs."""
    env = scrubbed_environment({}, environ=USER, config_home=tmp_path / "empty")

    assert env["XDG_CONFIG_HOME"] == str(tmp_path / "empty")
    assert env["XDG_CONFIG_DIRS"] == "/home/user/.config:/etc/xdg"


def test_system_configuration_is_told(tmp_path: Path):
    """A machine-wide settings file counts when it has content."""
    path = tmp_path / "config.ini"
    assert system_config(path) is None

    path.touch()
    assert system_config(path) is None

    path.write_text("ctx-size = 1024\n")
    assert system_config(path) == path


@pytest.mark.runtime
@pytest.mark.parametrize("kind", ["file", "variable"])
def test_real_runtime_obeys_no_user_settings(tmp_path: Path, llama_cpp: Path, kind: str):
    """llama-server fails on a user's faulty setting without the scrubbing, and not with it."""
    user = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    if kind == "file":
        settings = tmp_path / ".config" / "llama.cpp" / "config.ini"
        settings.parent.mkdir(parents=True)
        settings.write_text("ctx-size = many\n")
    else:
        user["LLAMA_ARG_CTX_SIZE"] = "many"
    argv = [str(llama_cpp / "llama-server"), "--version"]

    exposed = run(argv, env=user, timeout_s=50)
    scrubbed = run(argv, env=scrubbed_environment({}, environ=user), timeout_s=50)

    assert (exposed.returncode, scrubbed.returncode) == (1, 0)
