"""The long description for package indexes, where README's links into the repository must be absolute.

Everything else is in pyproject.toml.
"""

import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent


def stated(pattern: str, file: str) -> str:
    """Return the value that `pattern` matches in a file. Raises LookupError."""
    match = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise LookupError(f"{file} has no {pattern}")
    return match[1]


def long_description() -> str:
    """Return README with links to the files of this version's tag."""
    repository = stated(r'^Repository = "([^"]+)"', "pyproject.toml")
    version = stated(r'^__version__ = "([^"]+)"', "fxpool/version.py")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\((?![a-z]+:|#)", f"]({repository}/blob/v{version}/", readme)


setup(long_description=long_description(), long_description_content_type="text/markdown")
