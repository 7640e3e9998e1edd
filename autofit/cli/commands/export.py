"""`autofit export`: a study's winner as a file that a server can be started from."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autofit.cli.options.output_file import check_target, deliver
from autofit.errors import AutofitError, UsageError

if TYPE_CHECKING:
    from autofit.presets.facts import PresetFacts
    from autofit.presets.verify.verification import Check
    from autofit.runtime.discovery.found_runtime import Runtime


# Without the modules that write them: --help is quick.
_NAMES = "ini|llama-swap|shell|systemd|compose|env|json|args"


def _list_formats(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    del context, parameter
    from autofit.presets.formats.registry import FORMATS  # noqa: PLC0415 - heavy, --help is quick

    if value in FORMATS:
        return str(value)
    message = f"unknown format '{value}'" if value else "--format is missing"
    raise UsageError(message, f"known: {', '.join(FORMATS)}")


def _complete(context: click.Context, parameter: click.Parameter, word: str) -> list[str]:
    del context, parameter
    return [name for name in _NAMES.split("|") if name.startswith(word)]


@click.command("export")
@click.argument("sources", nargs=-1, required=True, metavar="STUDY|PLAN...")
@click.option(
    "--format",
    "format_name",
    metavar=_NAMES,
    callback=_list_formats,
    shell_complete=_complete,
    help="The kind of file.",
)
@click.option("-o", "--output", default="-", metavar="FILE", help="Where to; - is stdout.")
@click.option("--trial", type=int, metavar="N", help="Launch N of the study, not its winner.")
@click.option("--name", metavar="NAME", help="What the model is called in the file.")
@click.option(
    "--port", type=click.IntRange(1, 65535), help="The port to listen on.  [default: 8080]"
)
@click.option("--image", metavar="IMAGE", help="The container image, for compose.")
@click.option(
    "--runtime", metavar="PATH", help="The runtime to start, where it is not the tune's own."
)
@click.option("--merge", is_flag=True, help="Update the model's part of FILE, leave the rest.")
@click.option("--verify", is_flag=True, help="Start what is written, and only then write it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    *,
    sources: tuple[str, ...],
    format_name: str,
    output: str,
    trial: int | None,
    runtime: str | None,
    merge: bool,
    verify: bool,
    as_json: bool,
    **names: Any,  # noqa: ANN401 - click's keyword arguments
) -> int:
    """Write the winner of STUDY as a file that a server can be started from.

    Several studies go into one file of ini, llama-swap or compose. PLAN is a file with what
    `autofit plan MODEL --json` prints, or - for stdin.

    ini is for llama-server's router (--models-preset), shell a script, env a file of
    LLAMA_ARG_* variables, args one command line, json all of it for programs.
    """
    if len(sources) > 1 and (trial is not None or names["name"] is not None):
        raise UsageError("--trial and --name are for one study", "export them one by one")
    if merge and output == "-":
        raise UsageError("--merge needs the file to merge into", "name it with -o FILE")
    check_target(output)
    target = Path(output).expanduser()
    if merge and target.exists() and not target.is_file():
        raise UsageError(f"{output} is no file that can be merged into", "leave --merge out")
    presets, found = _presets(sources, trial, runtime, names)
    notices = _notices(format_name, presets)
    old = _old_text(output)
    text, told = _text(format_name, presets, output, old if merge else None)
    if old is not None and not merge:
        _keep_others(format_name, presets, old, output)
    for notice in (*notices, *told):
        click.echo(f"notice: {notice}", err=True)
    checks = _verified(format_name, text, presets, found) if verify else None
    document: dict[str, Any] = {
        "format": format_name,
        "output": None if output == "-" else output,
        "text": text if output == "-" else None,
        "models": [_model(facts) for facts in presets],
        "notices": [*notices, *told],
        "backup": None,
        "verification": _verification(checks),
    }
    failed = [check.name for check in checks or () if check.passed is False]
    if failed:
        error = AutofitError(
            f"the preset does not verify, nothing was written: {'; '.join(failed)}",
            "without --verify it is written as it is",
        )
        if not as_json:
            raise error
        document["error"] = {"kind": error.kind, "message": error.message, "hint": error.hint}
        click.echo(json.dumps(document))
        return error.exit_code
    document["backup"] = _write(format_name, text, output, old, as_json=as_json)
    if as_json:
        click.echo(json.dumps(document))
    return 0


def _presets(
    sources: Sequence[str], trial: int | None, runtime: str | None, names: dict[str, Any]
) -> tuple[list[PresetFacts], Runtime]:
    from autofit.cli.export_source import read_source  # noqa: PLC0415

    found = [read_source(given, trial=trial, runtime_path=runtime) for given in sources]
    changes = {
        field: value
        for field, value in (
            ("model_name", names["name"]),
            ("port", names["port"]),
            ("image", names["image"]),
        )
        if value is not None
    }
    presets = [replace(facts, **changes) for facts, _ in found]
    return presets, found[0][1]


def _notices(format_name: str, presets: Sequence[PresetFacts]) -> list[str]:
    from autofit.presets.formats.registry import find_format  # noqa: PLC0415

    several = len(presets) > 1
    told = []
    for facts in presets:
        about = f"{facts.model_name}: " if several else ""
        if not facts.proven:
            told.append(f"{about}these settings are NOT proven at full context")
        if facts.formats is None or format_name in facts.formats:
            told += [about + need for need in find_format(format_name).needs(facts)]
    if len({facts.command for facts in presets}) > 1 and format_name == "ini":
        told.append("the models were tuned on different programs, a router starts only its own")
    return told


def _text(
    format_name: str, presets: Sequence[PresetFacts], output: str, old: str | None
) -> tuple[str, list[str]]:
    from autofit.presets.formats.registry import find_format, write_preset  # noqa: PLC0415
    from autofit.presets.merge.merge_preset import merge_presets  # noqa: PLC0415

    called = [find_format(format_name).entry_name(facts) for facts in presets]
    twice = next((name for name in called if called.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"two of the studies are of a model called {twice}",
            "export the first, then --merge the second with a --name of its own",
        )
    text = write_preset(format_name, *presets)
    return (text, []) if old is None else merge_presets(format_name, old, presets, output)


def _old_text(output: str) -> str | None:
    """What is in the file that would be replaced, None where there is none."""
    path = Path(output).expanduser()
    if output == "-" or not path.is_file():
        return None
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "choose another file") from error


def _keep_others(format_name: str, presets: Sequence[PresetFacts], old: str, output: str) -> None:
    """Refuse to write over a file that holds other models too."""
    from autofit.presets.formats.registry import find_format  # noqa: PLC0415
    from autofit.presets.merge.merge_preset import models_in  # noqa: PLC0415

    try:
        there = models_in(format_name, old, output)
    except UsageError:
        return  # of another kind, so no such file of ours
    ours = {find_format(format_name).entry_name(facts) for facts in presets}
    others = [name for name in there if name not in ours]
    if others:
        raise UsageError(
            f"{output} holds other models: {', '.join(others)}",
            "--merge leaves them alone; to replace the file, remove it first",
        )


def _verified(
    format_name: str, text: str, presets: Sequence[PresetFacts], runtime: Runtime
) -> list[Check]:
    """Check the text in a file of its own: one that fails must not replace one that works."""
    from autofit.machine.lock import machine_lock  # noqa: PLC0415
    from autofit.presets.formats.registry import find_format  # noqa: PLC0415
    from autofit.presets.verify.verify_preset import verify  # noqa: PLC0415
    from autofit.study.durable_file import write_durably  # noqa: PLC0415

    with (
        tempfile.TemporaryDirectory(prefix="autofit-export-") as folder,
        machine_lock(f"export of {presets[0].model_name}"),
    ):
        file = Path(folder) / f"preset{find_format(format_name).suffix}"
        write_durably(file, text)
        checks = verify(format_name, file, presets, runtime, Path(folder))
    for check in checks:
        click.echo(check.line, err=True)
    return checks


def _write(
    format_name: str, text: str, output: str, old: str | None, *, as_json: bool
) -> str | None:
    """Deliver the text; returns where the older file was kept."""
    from autofit.presets.formats.registry import find_format  # noqa: PLC0415

    if output == "-":
        if not as_json:
            deliver(text, output)
        return None
    if old == text:
        click.echo(f"{output} says so already", err=True)
        return None
    backup = None
    if old is not None:
        if _old_text(output) != old:
            raise AutofitError(f"{output} was changed meanwhile", "export again")
        backup = f"{output}.bak"
        deliver(old, backup, like=Path(output).expanduser())
        click.echo(f"kept the older file as {backup}", err=True)
    deliver(text, output, is_program=find_format(format_name).is_program)
    click.echo(f"wrote {output}", err=True)
    return backup


def _model(facts: PresetFacts) -> dict[str, Any]:
    return {
        "model": facts.model_name,
        "model_path": str(facts.model_path),
        "origin": facts.origin or "winner",
        "proven": facts.proven,
        "check": facts.environment.check_value,
    }


def _verification(checks: Sequence[Check] | None) -> dict[str, Any] | None:
    from autofit.presets.verify.verification import verification  # noqa: PLC0415

    return None if checks is None else verification(checks)
