"""`autofit synth`: write a model of random weights."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("synth")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--layers", default=8, show_default=True, help="Transformer blocks.")
@click.option("--experts", default=16, show_default=True, help="Experts a block; 0: dense.")
@click.option("--used", default=4, show_default=True, help="Experts used for a token.")
@click.option("--embd", default=512, show_default=True, help="Embedding length.")
@click.option("--ff", default=256, show_default=True, help="Feed-forward length of an expert.")
@click.option("--heads", default=8, show_default=True, help="Attention heads.")
@click.option("--kv-heads", default=2, show_default=True, help="KV heads.")
@click.option("--head-dim", default=64, show_default=True, help="Length of a head.")
@click.option("--vocab", default=4096, show_default=True, help="Tokens of the vocabulary.")
@click.option("--ctx", default=32768, show_default=True, help="Training context.")
@click.option("--type", "type_", default="Q4_0", show_default=True, help="Type of the weights.")
@click.option("--embd-type", default="Q8_0", show_default=True, help="Type of the embeddings.")
@click.option("--seed", default=1, show_default=True, help="Seed of the random weights.")
@click.option("--header-only", is_flag=True, help="Leave the data a hole: for estimators.")
def command(out: Path, type_: str, **sizes: object) -> None:
    """Write a qwen3moe GGUF of random weights to OUT, for tests of settings and memory.

    Types: F16, Q8_0, Q4_0, Q4_K, Q6_K.
    """
    from autofit.model.synth import SynthSpec, write  # noqa: PLC0415 - numpy

    spec = SynthSpec(type=type_, **sizes)  # type: ignore[arg-type]
    write(spec, out)
    size_mib = out.stat().st_size / 2**20
    click.echo(f"{out}: {size_mib:,.0f} MiB", err=True)
