"""`python -m autofit`."""

from autofit.cli.main import main

if __name__ == "__main__":
    main()
