"""Start, watch and stop programs; the only part that does. It knows nothing of runtimes."""

from autofit.process.environment import (
    removed_variables,
    scrubbed_environment,
    system_config,
    user_config,
)
from autofit.process.helper_program import Finished, run
from autofit.process.managed import ManagedProcess, Ready

__all__ = [
    "Finished",
    "ManagedProcess",
    "Ready",
    "removed_variables",
    "run",
    "scrubbed_environment",
    "system_config",
    "user_config",
]
