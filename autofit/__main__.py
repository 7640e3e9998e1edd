"""The entry point of `python -m autofit` and of the console script.

Ctrl-C prints no traceback, not even during the imports.
"""

import os
import sys


def main() -> None:
    """Run the command line and exit; the exit code is 130 if Ctrl-C comes before it starts."""
    try:
        from autofit.cli.main import main as run  # noqa: PLC0415 - imports take time

        run()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            os.write(2, b"autofit: stopped\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
