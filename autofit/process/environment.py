"""The environment of a child process: the user's, without settings that change a runtime."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import platformdirs

# These name devices and libraries of the machine. They are not settings to tune.
_KEPT = frozenset(
    {
        "GGML_BACKEND_PATH",
        "GGML_CUDA_DEVICES",
        "GGML_METAL_PATH_RESOURCES",
        "GGML_OPENCL_DEVICE",
        "GGML_OPENCL_PLATFORM",
        "GGML_SYCL_VISIBLE_DEVICES",
        "GGML_VK_VISIBLE_DEVICES",
        "LLAMA_CACHE",
    }
)
# LLAMA_: arguments (LLAMA_ARG_*), LLAMA_API_KEY (each request would need it), debug switches.
_REMOVED_PREFIXES = ("LLAMA_", "GGML_")
# Switches of the CUDA driver that change speed; a candidate can set them.
_REMOVED = frozenset({"CUDA_SCALE_LAUNCH_QUEUES", "CUDA_LAUNCH_BLOCKING"})
# Without it, an abort of a Linux build starts a debugger, which takes many seconds.
_ADDED = {"GGML_NO_BACKTRACE": "1"}

SYSTEM_CONFIG = Path("/etc/llama.cpp/config.ini")


def scrubbed_environment(
    extra: Mapping[str, str],
    *,
    environ: Mapping[str, str] | None = None,
    also_remove: Collection[str] = (),
    config_home: Path | None = None,
) -> dict[str, str]:
    """Return the environment of a runtime: `environ` without settings, plus `extra`.

    `XDG_CONFIG_HOME` is an empty folder, because llama.cpp reads `llama.cpp/config.ini` there
    before its arguments. Others, such as the Vulkan loader, find the user's own folder through
    `XDG_CONFIG_DIRS`.

    Args:
        extra: variables from the user or the candidate, which have precedence.
        environ: the environment to start from; ours by default.
        also_remove: variables that are parameters of a dialect.
        config_home: the empty folder; one of ours by default.
    """
    ours = os.environ if environ is None else environ
    removed = set(removed_variables({}, environ=ours, also_remove=also_remove))
    kept = {name: value for name, value in ours.items() if name not in removed}
    config_dirs = ours.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    return {
        **kept,
        "XDG_CONFIG_HOME": str(config_home or _empty_config_home()),
        "XDG_CONFIG_DIRS": f"{_user_config_home(ours)}:{config_dirs}",
        **_ADDED,
        **extra,
    }


def removed_variables(
    extra: Mapping[str, str],
    *,
    environ: Mapping[str, str] | None = None,
    also_remove: Collection[str] = (),
) -> tuple[str, ...]:
    """Return the names of the variables that `scrubbed_environment` removes."""
    ours = os.environ if environ is None else environ
    return tuple(
        sorted(
            name
            for name in ours
            if name not in extra
            and name not in _ADDED
            and (
                name in _REMOVED
                or name in also_remove
                or (name.startswith(_REMOVED_PREFIXES) and name not in _KEPT)
            )
        )
    )


def system_config(path: Path = SYSTEM_CONFIG) -> Path | None:
    """Return the machine-wide settings file of llama.cpp, if it has content.

    Every runtime reads it and only root can change it, so autofit shows a warning.
    """
    return path if _has_content(path) else None


def user_config(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the user's settings file of llama.cpp, if it has content.

    Only a runtime that the user starts reads it.
    """
    path = _user_config_home(os.environ if environ is None else environ) / "llama.cpp/config.ini"
    return path if _has_content(path) else None


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _user_config_home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "~")) / ".config")


def _empty_config_home() -> Path:
    """Return a folder that stays empty; it need not exist."""
    return platformdirs.user_cache_path("autofit") / "empty-config-home"
