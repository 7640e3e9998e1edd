"""`python -m autofit`, and the console script: Ctrl-C is quiet from the first import on."""

import os
import sys


def main() -> None:
    """Run the command line and exit; 130 where it is interrupted before it has begun."""
    try:
        from autofit.cli.main import main as run  # noqa: PLC0415 - an import takes its time

        run()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            os.write(2, b"autofit: stopped\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
