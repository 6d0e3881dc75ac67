"""`python -m fxpool` is the command `fxpool`."""

from fxpool.cli import main

if __name__ == "__main__":
    main()
