"""The command `autofit`: finds the subcommand, and turns what ends a run into an exit code.

Subcommands are imported when they are called, so that `--help` answers at once.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import click

from autofit import __version__
from autofit.errors import AutofitError, Interrupted, UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Name, module, and the line that `autofit --help` shows, in the order of a first session.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "Tune a small model on this machine's CPU and show what the tool is for."),
    "doctor": ("doctor", "Show devices and runtimes, and what is missing for a tune."),
    "tune": ("tune", "Find, prove and write the best launch settings for a model."),
    "plan": ("plan", "Show, without launching, what a model takes on each device."),
    "probe": ("probe", "Find the fit boundary to the layer, both sides proven."),
    "compare": ("compare", "Measure two presets, or two runtimes, against each other."),
    "sweep": ("sweep", "Measure a suite every night, and say what got worse."),
    "import": ("import_command", "Read your own launch command or preset, as a baseline."),
    "explain": ("explain", "Tell from a server's log what killed it, and what to change."),
    "show": ("show", "Show a study, or the command line of one of its trials."),
    "report": ("report", "Write the report of a study."),
    "export": ("export", "Write a study's winner as a file that servers start from."),
    "replay": ("replay", "Run the search on a recorded table instead of a machine."),
    "synth": ("synth", "Write a GGUF model of random weights, for tests."),
    "check": ("check", "Validate search spaces, dialects, workloads and suites."),
}


# What programs of autofit call, and people need not know.
_UNLISTED = {"remeasure": "remeasure"}

_ENDING = (signal.SIGTERM, signal.SIGHUP)


class _ReaderGoneError(Exception):
    """Whoever read our output has closed it (`| head`); click takes that for a failure."""


@contextmanager
def _reader_may_go() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        if _has_no_reader(sys.stdout):
            raise _ReaderGoneError from error
        msg = "a pipe to another program broke"
        raise RuntimeError(msg) from error


def _has_no_reader(stream: TextIO) -> bool:
    """Whether a stream is a pipe whose other end is closed."""
    poller = select.poll()
    poller.register(stream.fileno(), select.POLLOUT)
    return any(event & select.POLLERR for _, event in poller.poll(0))


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:  # noqa: ANN401 - click's
        """Parse the words, which may print help."""
        with _reader_may_go():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's
        """Run the subcommand."""
        with _reader_may_go():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        """The commands in the order of a first session."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of that name, None when there is none."""
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
    """Print what a report of a fault needs."""
    if not is_asked or ctx.resilient_parsing:
        return
    from autofit.cli.build_facts import build_facts  # noqa: PLC0415 - reads many files

    click.echo("\n".join((f"autofit {__version__}", *build_facts())))
    ctx.exit()


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
    help="Show the version, and what it runs on, and exit.",
)
def autofit() -> None:
    """Find, prove and write the launch settings under which llama.cpp serves a model best.

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
    """  # noqa: D301 - click's mark for lines to keep is the character, not its name


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit."""
    words = sys.argv[1:] if argv is None else argv
    # A supervisor's SIGTERM and a closed terminal end a run as Ctrl-C does: cleanly. What is
    # ignored when we start stays so: `nohup`.
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    # Started with a closed stdout or stderr (`>&-`), Python has none.
    lost = _Lost() if sys.stdout is None else None
    sys.stdout = sys.stdout or _stream(lost)
    sys.stderr = sys.stderr or _stream(_Lost())
    status = _run(words)
    # All is written: a signal must not give what is over another exit code while Python, which
    # soon undoes our handlers, takes itself apart.
    for number in (signal.SIGINT, *_ENDING):
        signal.signal(number, signal.SIG_IGN)
    if status == 0 and lost is not None and lost.has_text:
        status = _fail(AutofitError("stdout is closed: the result could not be written"), words)
    sys.exit(status)


class _Lost(io.RawIOBase):
    """A closed stream's place, which tells whether anything was to be written to it."""

    def __init__(self) -> None:
        super().__init__()
        # Its number is taken, or the next file that is opened would get what is printed.
        self._place = os.open(os.devnull, os.O_WRONLY)
        self.has_text = False

    def fileno(self) -> int:
        return self._place

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        size = memoryview(data).nbytes
        self.has_text = self.has_text or size > 0
        return size


def _stream(lost: _Lost | None) -> TextIO:
    return io.TextIOWrapper(io.BufferedWriter(lost or _Lost()), encoding="utf-8")


def _interrupt(number: int, frame: object) -> None:
    del frame
    raise KeyboardInterrupt(signal.Signals(number).name)


def _run(words: list[str]) -> int:
    try:
        status = autofit.main(args=words, prog_name="autofit", standalone_mode=False)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f"see `{context.command_path} --help`" if context else ""
        return _fail(UsageError(error.format_message(), hint), words)
    except (KeyboardInterrupt, click.Abort):
        # Whoever measures says itself what is saved and how to go on.
        return _fail(Interrupted("stopped"), words)
    except AutofitError as error:
        return _fail(error, words)
    except _ReaderGoneError:
        _silence(sys.stdout)
        return 0
    except OSError as error:
        from autofit.cli.options.paths import describe_path_error  # noqa: PLC0415 - --help is quick

        return _fail(describe_path_error(error), words)
    except Exception as error:  # noqa: BLE001 - no traceback reaches a user
        return _fail(_internal(error), words)
    return _written(status if isinstance(status, int) else 0, words)


def _written(status: int, words: list[str]) -> int:
    """The exit code once all that was printed has left: a full disk may refuse the last of it."""
    try:
        with _reader_may_go():
            sys.stdout.flush()
    except _ReaderGoneError:
        _silence(sys.stdout)
    except OSError as error:
        _silence(sys.stdout)
        told = AutofitError(f"the result could not be written: {error.strerror or error}")
        return _fail(told, words) if status == 0 else status
    return status


def _internal(error: Exception) -> AutofitError:
    text = f"a fault in autofit itself: {type(error).__name__}: {error}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="autofit-fault-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            from autofit.runtime.command.redaction import redact_command  # noqa: PLC0415

            file.write(
                " ".join(redact_command(sys.argv))
                + "\n\n"
                + "".join(traceback.format_exception(error))
            )
    except OSError:
        return AutofitError(text, "please report it")
    return AutofitError(text, f"please report it with {file.name}")


def _fail(error: AutofitError, words: list[str]) -> int:
    own = words[: words.index("--")] if "--" in words else words
    if "--json" in own:
        told: dict[str, Any] = {
            "kind": error.kind,
            "message": error.message,
            "hint": error.hint or None,
        }
        if error.reason:
            told["reason"] = error.reason
        _tell(json.dumps({"error": told}), sys.stdout)
    _tell(f"autofit: {error.message}", sys.stderr)
    if error.hint:
        _tell(f"hint: {error.hint}", sys.stderr)
    return error.exit_code


def _tell(text: str, stream: TextIO) -> None:
    """Say something as the last thing, whether anybody listens or not."""
    try:
        click.echo(text, file=stream)
    except OSError:
        _silence(stream)


def _silence(stream: TextIO) -> None:
    """Send what is left in a stream nowhere, or the interpreter complains when it flushes it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
