"""Writes the completion scripts below share/, which the wheel installs, as click makes them for bash, zsh and fish.

    python docs/shell_completion.py

The scripts ask `fxpool` for the words, so they are up to date with any version of fxpool.
"""

from __future__ import annotations

from pathlib import Path

from click.shell_completion import get_completion_class

from fxpool.commands.main import main

SHARE = Path(__file__).parents[1] / "share"
SCRIPTS = {
    "bash": SHARE / "bash-completion" / "completions" / "fxpool",
    "zsh": SHARE / "zsh" / "site-functions" / "_fxpool",
    "fish": SHARE / "fish" / "vendor_completions.d" / "fxpool.fish",
}


def script(shell: str) -> str:
    """Return the script that completes `fxpool` in a shell. Raises LookupError for one that click does not know."""
    completion = get_completion_class(shell)
    if completion is None:
        raise LookupError(f"click has no completion for {shell}")
    # Not source(), which runs bash to warn about old versions.
    complete = completion(main, {}, "fxpool", "_FXPOOL_COMPLETE")
    return completion.source_template % complete.source_vars()


if __name__ == "__main__":
    for shell, path in SCRIPTS.items():
        path.write_text(script(shell).strip() + "\n", encoding="utf-8")
