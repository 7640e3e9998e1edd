"""The command line of llama-server: flags from its own help text, values checked as it does.

Paths are text here: importing pathlib would slow every start of the fake server.
"""

# ruff: noqa: PTH100, PTH113, PTH118, PTH120, PTH123 -- see above

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fakes.machine import RuntimeTraits
from fakes.settings import KV_BYTES

HELP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "help")
_COLUMN = 40
_WHOLE = re.compile(r"\s*([+-]?\d+)")

_SLOTS_HELP = """\
--prefetch-experts-slots N              number of staging slots for uploading host
                                        experts ahead of their use (default: 0)
                                        (env: LLAMA_ARG_PREFETCH_EXPERTS_SLOTS)
"""
_WEIGHTS_HELP = """\
-pw,   --prefetch-weights <0|1>         upload the host weights of the next layer
                                        ahead of their use (default: 0)
"""
_CACHE_HELP = """\
--moe-cache-mib N                       device memory for a cache of host experts in
                                        MiB, 0 = off (default: 0)
                                        (env: LLAMA_ARG_MOE_CACHE_MIB)
"""


class UsageError(Exception):
    """The command line is refused; the text is what goes to stderr, `before` to stdout."""

    def __init__(self, text: str, before: str = "") -> None:
        super().__init__(text)
        self.before = before


@dataclass(frozen=True, slots=True)
class Option:
    """One flag of the help text."""

    spellings: tuple[str, ...]
    values: int  # how many words follow it
    env: str
    text: str

    @property
    def name(self) -> str:
        """Its first long spelling."""
        return next((s for s in self.spellings if s.startswith("--")), self.spellings[0])


@dataclass(slots=True)
class CommandLine:
    """The request: parameters by autofit's names, everything else by flag."""

    params: dict[str, Any] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    @property
    def verbosity(self) -> int:
        """Log lines above this are left out."""
        return int(self.other.get("--verbosity", 3))


def help_text(traits: RuntimeTraits, program: str = "llama-server") -> str:
    """The help text of a build with these traits."""
    build = "b10434" if traits.log_format == "old" and program == "llama-server" else "b11434"
    with open(os.path.join(HELP, f"{program}-{build}.txt"), encoding="utf-8") as file:
        text = file.read()
    extra = (_SLOTS_HELP if traits.prefetch == "slots" else "") + (
        _WEIGHTS_HELP if traits.prefetch == "weights" else ""
    )
    extra += _CACHE_HELP if traits.has_moe_cache else ""
    if not traits.has_load_mode:
        text = re.sub(r"(?m)^-lm,.*\n(?:[ ].*\n)*", "", text)
    return text.replace("-ngl,  --gpu-layers", extra + "-ngl,  --gpu-layers", 1)


def options(text: str) -> Iterator[Option]:
    """The flags that a help text lists."""
    entries: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("-") and not line.startswith("-----"):
            entries.append([line])
        elif line.startswith(" " * _COLUMN) and entries:
            entries[-1].append(line)
    for lines in entries:
        head = lines[0]
        # A lone word there is the value's name of a long flag, not its description.
        if len(head) > _COLUMN and head[_COLUMN - 1] == " " and " " in head[_COLUMN:].strip():
            head = head[:_COLUMN]
        words = head.replace(",", " ").split()
        spellings = tuple(word for word in words if re.match(r"--?[A-Za-z]", word))
        hints = [word for word in head.split() if not word.startswith("-")]
        whole = "\n".join(lines)
        env = re.search(r"\(env: (\w+)\)", whole)
        count = 2 if hints == ["START", "END"] else min(1, len(hints))
        yield Option(spellings, count, env.group(1) if env else "", whole)


def _whole(text: str) -> int:
    found = _WHOLE.match(text)
    if not found:
        raise ValueError("stoi")
    return int(found.group(1))


def _natural(text: str) -> int:
    if (value := _whole(text)) < 0:
        raise ValueError("invalid value")
    return value


def _parallel(text: str) -> int:
    if (value := _whole(text)) == 0:
        raise ValueError("error: invalid value for n_parallel\n")
    return value


def _layers(text: str) -> int | str:
    return text if text in ("auto", "all") else _whole(text)


def _choice(*allowed: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in allowed:
            raise ValueError("invalid value")
        return text

    return check


def _switch(flag: str, *extra: str) -> Callable[[str], str]:
    words = {"on": "on", "enabled": "on", "true": "on", "1": "on", "off": "off",
             "disabled": "off", "false": "off", "0": "off"}  # fmt: skip

    def check(text: str) -> str:
        if text in extra:
            return "auto"
        if text not in words:
            raise ValueError(f"error: unknown value for {flag}: '{text}'\n")
        return words[text]

    return check


def _cache_type(text: str) -> str:
    if text not in KV_BYTES:
        raise ValueError(f"Unsupported cache type: {text}")
    return text


# Flag to (parameter, reader of its value). A tuple of spellings and values follows for booleans.
_VALUES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "--ctx-size": ("context", _whole),
    "--batch-size": ("batch", _whole),
    "--ubatch-size": ("ubatch", _whole),
    "--parallel": ("parallel", _parallel),
    "--flash-attn": ("flash_attn", _switch("--flash-attn", "auto", "-1")),
    "--cache-type-k": ("cache_type_k", _cache_type),
    "--cache-type-v": ("cache_type_v", _cache_type),
    "--gpu-layers": ("n_gpu_layers", _layers),
    "--split-mode": ("split_mode", _choice("none", "layer", "row", "tensor")),
    "--tensor-split": ("tensor_split", str),
    "--main-gpu": ("main_gpu", _whole),
    "--n-cpu-moe": ("n_cpu_moe", _natural),
    "--n-cpu-ffn": ("n_cpu_ffn", _natural),
    "--load-mode": ("load_mode", _choice("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")),
    "--threads": ("threads", _whole),
    "--numa": ("numa", _choice("distribute", "isolate", "numactl")),
    "--threads-batch": ("threads_batch", _whole),
    "--prefetch-experts-slots": ("prefetch_slots", _natural),
    "--prefetch-weights": ("prefetch_slots", _natural),
    "--moe-cache-mib": ("moe_cache_mib", _natural),
    "--fit": ("fit", _switch("--fit")),
    "--fit-target": ("fit_target", str),
    "--fit-ctx": ("fit_ctx", _whole),
}
_BOOLEANS: dict[str, tuple[str, Any]] = {
    "--kv-unified": ("kv_unified", True), "-kvu": ("kv_unified", True),
    "--no-kv-unified": ("kv_unified", False), "-no-kvu": ("kv_unified", False),
    "--kv-offload": ("kv_offload", True), "-kvo": ("kv_offload", True),
    "--no-kv-offload": ("kv_offload", False), "-nkvo": ("kv_offload", False),
    "--op-offload": ("op_offload", True), "--no-op-offload": ("op_offload", False),
    "--cpu-moe": ("cpu_moe", True), "-cmoe": ("cpu_moe", True),
    "--swa-full": ("swa_full", True),
    "--repack": ("repack", True), "--no-repack": ("repack", False), "-nr": ("repack", False),
    "--no-cache-prompt": ("cache_prompt", False), "--cache-prompt": ("cache_prompt", True),
    "--mmap": ("load_mode", "mmap"), "--no-mmap": ("load_mode", "none"),
    "--mlock": ("load_mode", "mmap+mlock"), "-dio": ("load_mode", "dio"),
    "--direct-io": ("load_mode", "dio"),
}  # fmt: skip
_COUNTED = {"--port": _whole, "--verbosity": _whole, "--cache-ram": _whole,
            "--ctx-checkpoints": _whole}  # fmt: skip


class Parser:
    """Reads a command line for a build; device and buffer names are asked when needed."""

    def __init__(
        self,
        text: str,
        device_names: Callable[[CommandLine], list[str]],
        buffer_names: Callable[[CommandLine], list[str]],
        rejected: Sequence[str] = (),
    ) -> None:
        self.by_flag = {
            spelling: option
            for option in options(text)
            for spelling in option.spellings
            if spelling not in rejected
        }
        self.device_names, self.buffer_names = device_names, buffer_names

    def parse(self, argv: Sequence[str], env: Mapping[str, str]) -> CommandLine:
        """The command line after the environment and the user's configuration file.

        Raises:
            UsageError: it is refused.
        """
        line = CommandLine()
        self._read_env(line, env)
        words = list(argv)
        while words:
            word = words.pop(0)
            flag = word.replace("_", "-") if word.startswith("--") else word
            option = self.by_flag.get(flag)
            if option is None:
                raise UsageError(f"error: invalid argument: {word}\n")
            if len(words) < option.values:
                raise self._fault(word, option, "expected value for argument")
            taken, words = words[: option.values], words[option.values :]
            line.order.append(option.name)
            self._take(line, option, flag, word, taken)
        return line

    def _read_env(self, line: CommandLine, env: Mapping[str, str]) -> None:
        for option in dict.fromkeys(self.by_flag.values()):
            value = env.get(option.env)
            if not option.env.startswith("LLAMA_ARG_") or value is None:
                continue
            if option.values:
                self._take(line, option, option.name, option.env, [value])
            elif value in ("1", "true", "on", "enabled"):
                self._take(line, option, option.name, option.env, [])

    @staticmethod
    def _fault(word: str, option: Option, why: str, before: str = "") -> UsageError:
        return UsageError(
            f'error while handling argument "{word}": {why}\n\nusage:\n{option.text}\n\n\n'
            "to show complete usage, run with -h\n",
            before,
        )

    def _take(
        self, line: CommandLine, option: Option, flag: str, word: str, taken: list[str]
    ) -> None:
        name = option.name
        try:
            if name in _VALUES:
                parameter, read = _VALUES[name]
                line.params[parameter] = read(taken[0])
            elif flag in _BOOLEANS:
                parameter, value = _BOOLEANS[flag]
                line.params[parameter] = value
            elif name == "--device":
                self._take_devices(line, taken[0])
            elif name == "--override-tensor":
                self._take_overrides(line, option, word, taken[0])
            else:
                read = _COUNTED.get(name, str)
                line.other[name] = read(taken[0]) if taken else flag
        except ValueError as error:
            raise self._fault(word, option, str(error)) from error

    def _take_devices(self, line: CommandLine, text: str) -> None:
        known = self.device_names(line)
        for name in text.split(","):
            if name != "none" and name not in known:
                raise ValueError(f"invalid device: {name}")
        line.params["devices"] = text

    def _take_overrides(self, line: CommandLine, option: Option, word: str, text: str) -> None:
        known = self.buffer_names(line)
        for item in text.split(","):
            _, equals, buffer = item.partition("=")
            if not equals:
                raise ValueError("invalid value")
            if buffer not in known:
                names = "".join(f"  {name}\n" for name in known)
                raise self._fault(
                    word, option, "unknown buffer type", f"Available buffer types:\n{names}"
                )
        earlier = line.params.get("override_tensor")
        if earlier is None and {"--n-cpu-moe", "--cpu-moe", "--n-cpu-ffn"} & set(line.order):
            line.params["layer_rules_first"] = True
        line.params["override_tensor"] = f"{earlier},{text}" if earlier else text


def env_params(env: Mapping[str, str], traits: RuntimeTraits) -> dict[str, Any]:
    """Parameters that are set by environment variables alone."""
    params: dict[str, Any] = {}
    if env.get("GGML_OP_OFFLOAD_MIN_BATCH", "").isdigit():
        params["op_offload_min_batch"] = int(env["GGML_OP_OFFLOAD_MIN_BATCH"])
    if traits.prefetch == "env" and env.get("GGML_SCHED_PREFETCH_EXPERTS", "").isdigit():
        params["prefetch_slots"] = int(env["GGML_SCHED_PREFETCH_EXPERTS"])
    if env.get("CUDA_SCALE_LAUNCH_QUEUES"):
        params["cuda_scale_launch_queues"] = env["CUDA_SCALE_LAUNCH_QUEUES"]
    if traits.prefetch == "env" and env.get("GGML_CUDA_REGISTER_HOST") == "1":
        params["cuda_register_host"] = True
    return params


def config_words(env: Mapping[str, str]) -> tuple[str | None, list[str]]:
    """The user's configuration file, and its settings as command line words."""
    home = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME", "/nonexistent"), ".config")
    path = os.path.join(home, "llama.cpp", "config.ini")
    if not os.path.isfile(path):
        return None, []
    words: list[str] = []
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    for line in lines:
        key, equals, value = line.split("#")[0].partition("=")
        if equals:
            words += ["--" + key.strip(), value.strip()]
    return path, words
