"""``python -m campaigns.first_day.packages DIRECTORY``: install there what rows need and this environment lacks.

pip would install into a target all that is asked for and what that needs, torch included: so pip is asked what is
missing here, and that alone goes there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
PIP = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def main(directory: str) -> int:
    """Exit status."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        # The dependencies of fxpool are installed; only the requirements of the extra are missing.
        subprocess.run([*PIP, "--dry-run", "--report", report, *requirements()], check=True)
        missing = json.loads(report.read_text())["install"]
    names = [f"{found['metadata']['name']}=={found['metadata']['version']}" for found in missing]
    if names:
        subprocess.run([*PIP, "--no-compile", "--no-deps", "--upgrade", "--target", directory, *names], check=True)
    return 0


def requirements() -> list[str]:
    """Return the requirements of the extra ``first-day`` of pyproject.toml."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    table = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[str] = table["project"]["optional-dependencies"]["first-day"]
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
