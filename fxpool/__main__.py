"""Runs the command `fxpool` for `python -m fxpool`."""

from fxpool.commands.main import main

if __name__ == "__main__":
    main()
