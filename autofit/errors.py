"""The exceptions that end a run.

    AutofitError            1    the run failed
    |- UsageError           2    a wrong option, name or faulty file
    |  |- MissingError           a model, runtime or device that was named is not here
    |  '- UnsupportedError       the runtime does not have a setting that was asked for
    |- NothingFitsError     3    no candidate fits, or a tune would not work here
    |- MachineInUseError    4    another autofit holds the machine
    |- RegressionError      5    the answer is "worse than before" or "no longer fits"
    '- Interrupted        130    stopped by the user; the study can be resumed

A candidate that cannot work is not an exception but an `autofit.trial.outcome` value.
Only `autofit.cli` catches these.
"""

from __future__ import annotations


class AutofitError(Exception):
    """A run that cannot go on: what happened and where, and what to do about it."""

    exit_code = 1
    kind = "failed"
    reason: str | None = None

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(AutofitError):
    """The command line or a file that a person wrote is wrong."""

    exit_code = 2
    kind = "usage"


class MissingError(UsageError):
    """A model, runtime or device that was named is not on this machine."""

    reason = "missing"


class UnsupportedError(UsageError):
    """The runtime does not have a setting that was asked for."""

    reason = "unsupported"


class NothingFitsError(AutofitError):
    """No candidate fits on this machine, or it lacks what a tune needs."""

    exit_code = 3
    kind = "nothing_fits"


class MachineInUseError(AutofitError):
    """Another autofit is measuring on this machine."""

    exit_code = 4
    kind = "machine_in_use"


class RegressionError(AutofitError):
    """A comparison with a kept reference came out worse."""

    exit_code = 5
    kind = "regression"


class Interrupted(AutofitError):  # noqa: N818 - named for what the user did, it is not a fault
    """The user stopped the run; everything measured is saved."""

    exit_code = 130
    kind = "interrupted"
