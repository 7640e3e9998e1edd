"""The environment of a child: the user's, less what would silently change a runtime."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import platformdirs

# Which devices and libraries there are is a fact of the machine, not a setting to be tuned.
KEPT = frozenset(
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
# LLAMA_: arguments (LLAMA_ARG_*), LLAMA_API_KEY (every request would need it), debug switches.
REMOVED_PREFIXES = ("LLAMA_", "GGML_")
# Switches of the CUDA driver that change speed; a candidate sets them where it wants them.
REMOVED = frozenset({"CUDA_SCALE_LAUNCH_QUEUES", "CUDA_LAUNCH_BLOCKING"})
# An abort of a Linux build otherwise starts a debugger, which takes many seconds.
ADDED = {"GGML_NO_BACKTRACE": "1"}

SYSTEM_CONFIG = Path("/etc/llama.cpp/config.ini")


def scrubbed_environment(
    extra: Mapping[str, str],
    *,
    environ: Mapping[str, str] | None = None,
    also_remove: Collection[str] = (),
    config_home: Path | None = None,
) -> dict[str, str]:
    """The environment for a runtime: `environ` (default: ours) without settings, plus `extra`.

    `also_remove` names variables that are parameters of a dialect. `XDG_CONFIG_HOME` leads to
    an empty folder (`config_home`, default: one of our own), since llama.cpp reads
    `llama.cpp/config.ini` there before its arguments; the user's own folder stays reachable
    for others, such as the Vulkan loader, through `XDG_CONFIG_DIRS`. `extra` is what the user
    or the candidate asked for, and wins over all of this.
    """
    ours = os.environ if environ is None else environ
    removed = set(removed_variables({}, environ=ours, also_remove=also_remove))
    kept = {name: value for name, value in ours.items() if name not in removed}
    config_dirs = ours.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    return {
        **kept,
        "XDG_CONFIG_HOME": str(config_home or _empty_config_home()),
        "XDG_CONFIG_DIRS": f"{_user_config_home(ours)}:{config_dirs}",
        **ADDED,
        **extra,
    }


def removed_variables(
    extra: Mapping[str, str],
    *,
    environ: Mapping[str, str] | None = None,
    also_remove: Collection[str] = (),
) -> tuple[str, ...]:
    """Names of the variables that `scrubbed_environment` takes away, for a notice."""
    ours = os.environ if environ is None else environ
    return tuple(
        sorted(
            name
            for name in ours
            if name not in extra
            and name not in ADDED
            and (
                name in REMOVED
                or name in also_remove
                or (name.startswith(REMOVED_PREFIXES) and name not in KEPT)
            )
        )
    )


def system_config(path: Path = SYSTEM_CONFIG) -> Path | None:
    """The machine-wide settings file of llama.cpp, if there is one with content.

    Nothing but root's hand keeps a runtime from reading it, so the user should be told.
    """
    return path if _has_content(path) else None


def user_config(environ: Mapping[str, str] | None = None) -> Path | None:
    """The user's own settings file of llama.cpp, if there is one with content.

    A runtime that autofit starts does not read it; one started by hand does.
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
    """A folder of ours that stays empty; it need not exist."""
    return platformdirs.user_cache_path("autofit") / "empty-config-home"
