"""`python -m fxpool` is the command `fxpool`."""

from fxpool.commands.main import main

if __name__ == "__main__":
    main()
