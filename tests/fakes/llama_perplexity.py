"""A fake llama-perplexity: keeps the chances of a text's tokens, and scores a KV type by traits.

A KV type moves chances by the machine's `kv_logprob_error`, and changes tokens by its
`kv_text_change`; nothing is computed. Each run counts as a launch.
"""

# ruff: noqa: PTH100, PTH120, PTH123 -- the path comes before our imports; pathlib would slow every start

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from fakes.flags import Parser, UsageError, help_text
from fakes.gguf_header import BadModelError
from fakes.log import Log
from fakes.machine_file import load_model, read_machine, shown_devices
from fakes.placement import buffer_name

_KEPT = "kept by a fake\n"


def run(argv: list[str]) -> int:
    """Keep or score."""
    machine, state = read_machine()
    text = help_text(machine.runtime, "llama-perplexity")
    if "--help" in argv or "-h" in argv:
        os.write(1, text.encode())
        return 0
    parser = Parser(
        text,
        lambda line: [machine.devices[i].name for i in shown_devices(machine, line)],
        lambda line: ["CPU", *(buffer_name(machine, i) for i in shown_devices(machine, line))],
    )
    try:
        line = parser.parse(argv, os.environ)
    except UsageError as error:
        os.write(2, str(error).encode())
        return 1
    log = Log(line.verbosity)
    with state.edit() as data:
        data["launches"] += 1
        faults = [fault["name"] for fault in data["faults"]]
    try:
        load_model(str(line.other.get("--model", "")))
    except (OSError, BadModelError):
        log.error_line("llama_model_load_from_file_impl: failed to load model")
        return 1
    if "perplexity" in faults:
        log.error_line("perplexity: you need at least 1024 tokens to evaluate perplexity")
        return 1
    base = str(line.other["--save-all-logits"])
    chunks = int(line.other.get("--chunks", 2))
    if "--kl-divergence" not in line.other:
        with open(str(line.other["--file"]), encoding="utf-8"), open(base, "w") as file:
            file.write(f"{_KEPT}{chunks}\n")
        return 0
    with open(base, encoding="utf-8") as file:
        kept = file.read()
    if not kept.startswith(_KEPT):
        log.error_line("kl_divergence: failed to read the header")
        return 1
    kinds = [str(line.params.get(f"cache_type_{which}", "f16")) for which in "kv"]
    traits = machine.runtime
    moved = max(traits.kv_logprob_error.get(kind, 0.0) for kind in kinds)
    changed = max(traits.kv_text_change.get(kind, 0.0) for kind in kinds)
    chunks = int(kept.removeprefix(_KEPT))
    log.say("I", f"kl_divergence: computing over {chunks} chunks, n_ctx=512, batch_size=512")
    os.write(1, _statistics(moved, changed).encode())
    return 0


def _statistics(moved: float, changed: float) -> str:
    return (
        "\n====== KL divergence statistics ======\n"
        f"Mean    KLD: {moved**2:10.6f} ± {moved**2 / 20:10.6f}\n"
        f"Maximum KLD: {12 * moved**2:10.6f}\n"
        "\n====== Token probability statistics ======\n"
        f"Same top p: {100 * (1 - changed):6.3f} ± 1.135 %\n\n"
    )


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
