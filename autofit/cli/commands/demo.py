"""`autofit demo`: the whole job on a small model, on any machine."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from autofit.cli.options.shared_options import RunOptions
from autofit.session.task_options import TaskOptions

# Small enough for two cores beside a busy neighbour: a request takes some tenths of a second.
_BUDGET_S = 120.0
_MAX_LAUNCHES = 14
_MODEL = {
    "layers": 6,
    "experts": 16,
    "used": 2,
    "embd": 384,
    "ff": 128,
    "heads": 6,
    "kv_heads": 2,
    "head_dim": 64,
    "vocab": 2048,
    "ctx": 4096,
    "type": "q4_0",
    "embd_type": "q8_0",
    "seed": 1,
}


@click.command("demo")
@click.option("--study", type=click.Path(path_type=Path), help="The study's folder.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(study: Path | None, *, as_json: bool) -> int:
    """Tune a small model of random weights on this machine's CPU, in under three minutes.

    Ends with a table, a preset, a report and a study folder. Then a recorded table of a real
    GPU is replayed, and a plan for two cards shown, for what the tool is for.
    """
    from autofit.cli.commands.tune import run_tune  # noqa: PLC0415 - heavy, and --help must be quick

    model = demo_model()
    options = TaskOptions(
        model=model,
        runtime=None,
        dialect="embedded" if find_spec("xllamacpp") else None,
        space="cpu",
        workload="demo",
        context=None,
        parallel=None,
        devices_mib={},
        rpc="",
        pins={},
        env={},
        wrapper=(),
        kv_floor="q8_0",
        extra_args=(),
    )
    click.echo(f"tuning {model.name} (random weights) on this machine's CPU", err=True)
    result = run_tune(
        options,
        RunOptions(study, budget_s=_BUDGET_S),
        max_launches=_MAX_LAUNCHES,
        checks_answers=False,  # those of random weights mean nothing
    )
    return show(result or {}, options, as_json=as_json)


def show(result: dict[str, Any], options: TaskOptions, *, as_json: bool) -> int:
    """Tell the tune's result and, after it and on the same stream, the tour."""
    from autofit.cli.commands.tune import print_result  # noqa: PLC0415
    from autofit.cli.demo_tour import tour  # noqa: PLC0415 - heavy, and --help must be quick
    from autofit.output.text.console import make_console  # noqa: PLC0415

    code = print_result(result, as_json=as_json)
    tour(make_console(sys.stderr if as_json else sys.stdout), options)
    return code


def demo_model_path() -> Path:
    """Where the demo's model lies once it was made."""
    import platformdirs  # noqa: PLC0415 - only needed here

    return platformdirs.user_cache_path("autofit") / "autofit-demo-1.gguf"


def demo_model() -> Path:
    """The demo's model in the user's cache, written there the first time."""
    from autofit.errors import AutofitError  # noqa: PLC0415
    from autofit.model.gguf.header import read_header  # noqa: PLC0415 - heavy
    from autofit.model.synth.random_model import SynthSpec, write_model  # noqa: PLC0415

    path = demo_model_path()
    folder = path.parent
    try:
        read_header(path)
    except AutofitError:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"autofit-demo-1.{os.getpid()}.gguf"
        write_model(SynthSpec(**_MODEL), part)  # type: ignore[arg-type]
        part.replace(path)
    return path
