"""The exceptions that end a run, with their exit codes.

    AutofitError            1    the run failed
    |- UsageError           2    a wrong option or name, or a faulty file
    |  |- MissingError           a named model, runtime or device does not exist
    |  '- UnsupportedError       the runtime does not have a requested setting
    |- NothingFitsError     3    no candidate fits, or a tune would not work here
    |- MachineInUseError    4    another autofit uses the machine
    |- RegressionError      5    worse than before, or no longer fits
    '- Interrupted        130    stopped by the user; the study can be resumed

The failure of a candidate is no exception: it is an outcome (`autofit.trial.outcome`).
`autofit.cli` converts exceptions to exit codes.
"""

from __future__ import annotations


class AutofitError(Exception):
    """An error that ends a run. The message says what happened; the hint says what to do."""

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
    """A named model, runtime or device does not exist on this machine."""

    reason = "missing"


class UnsupportedError(UsageError):
    """The runtime does not have a requested setting."""

    reason = "unsupported"


class NothingFitsError(AutofitError):
    """No candidate fits on this machine, or it lacks what a tune needs."""

    exit_code = 3
    kind = "nothing_fits"


class MachineInUseError(AutofitError):
    """Another autofit uses this machine."""

    exit_code = 4
    kind = "machine_in_use"


class RegressionError(AutofitError):
    """Something is worse than its reference, or no longer fits."""

    exit_code = 5
    kind = "regression"


class Interrupted(AutofitError):  # noqa: N818 - not an error, but what the user did
    """The user stopped the run; everything measured is saved."""

    exit_code = 130
    kind = "interrupted"
