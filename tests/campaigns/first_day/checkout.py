"""The row of README's "Try it", word for word: fxpool installed from a checkout, and the program run in the checkout.

The checkout's `fxpool` folder is then ahead of the installed one on the program's path.
"""

from __future__ import annotations

import re

from sources import ROOT, copy_checkout

from .environment import Site
from .row import WITNESS, Row
from .verdict import Run

__all__ = ["ROWS", "quick", "said_by_quick"]

# Without its dependencies and their download; into a directory, as another environment takes minutes.
_INSTALL = (
    "{ [ -d {root}/installed ] || {python} -m pip install --quiet --disable-pip-version-check --no-deps "
    "--target {root}/installed . >&2; }"
)
_CHECK = WITNESS + "x = torch.ones(8, 64)\nwitness.check(compiled(x), model(x))\n"


def quick() -> str:
    """Return README's `quick.py`."""
    return _block("python")


def said_by_quick() -> list[str]:
    """Return the lines that its two runs print, as README has them."""
    return _block("text").splitlines()


def _block(language: str) -> str:
    """Return README's block of a language about hits: the program, or its output."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (block,) = (code for name, code in blocks if name == language and "from the cache;" in code)
    return block


def _copied(site: Site) -> None:
    copy_checkout(site.root / "checkout")


def _as_in_readme(site: Site, run: Run) -> str:
    output = site.root / "said"
    said = output.read_text(encoding="utf-8").splitlines() if output.exists() else []
    return "" if said == said_by_quick()[:1] else f"printed {said}, and README says {said_by_quick()[:1]}"


ROWS = [
    Row(
        name="README's program in the checkout",
        files={"{root}/checkout/quick.py": quick() + _CHECK},
        arguments=("quick.py",),
        shell=f'cd {{root}}/checkout && {_INSTALL} && set -o pipefail && "$@" | tee {{root}}/said',
        environment={"PYTHONPATH": "{root}/installed"},
        prepare=_copied,
        also=_as_in_readme,
    ),
]
