"""`autofit synth`: write a model of random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from autofit.cli.say import say
from autofit.model.synth.architectures import ARCHITECTURES
from autofit.model.synth.random_model import WEIGHT_TYPES, SynthSpec, write_model
from autofit.units import MIB

_HELP = {
    "arch": f"Architecture: {', '.join(ARCHITECTURES)}.",
    "layers": "Transformer blocks.",
    "experts": "Experts per block; 0 makes a dense model.",
    "used": "Experts used per token.",
    "embd": "Embedding length.",
    "ff": "Feed-forward length of an expert.",
    "heads": "Attention heads.",
    "kv_heads": "KV heads.",
    "head_dim": "Length of a head.",
    "vocab": "Tokens of the vocabulary.",
    "ctx": "Training context.",
    "type": "Type of the weights.",
    "embd_type": "Type of the embedding and the output.",
    "seed": "Seed of the random weights.",
    "header_only": "Write no weights, only a hole of their size. Enough to predict memory.",
}


def _size_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each field of the specification, with its default."""
    for field in reversed(fields(SynthSpec)):
        option = click.option(
            f"--{field.name.replace('_', '-')}",
            field.name,
            default=field.default,
            is_flag=field.default is False,
            show_default=field.default is not False,
            help=_HELP[field.name],
        )
        function = option(function)
    return function


@click.command("synth", epilog=f"Types: {', '.join(WEIGHT_TYPES)}.")
@click.argument("out", type=click.Path(path_type=Path))
@_size_options
def command(out: Path, **sizes: Any) -> None:  # noqa: ANN401 - click's keyword arguments
    """Write a GGUF of random weights to OUT.

    Its answers have no meaning (tune it with --no-answers), but it needs as much memory and
    time as a real model of the same architecture and size. gpt-oss has sliding windows,
    MXFP4 experts, biases and sinks; deepseek2 has latent attention; deepseek2 and glm4moe
    have a dense first block and a shared expert; glm4moe has one more block, for multi-
    token prediction; in qwen3next three of four blocks are recurrent. qwen3moe with
    --experts 0 is a dense qwen3.
    """
    write_model(SynthSpec(**sizes), out)
    say(f"{out}: {out.stat().st_size / MIB:,.0f} MiB", err=True)
