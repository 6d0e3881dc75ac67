"""Decides whether this process's torch is supported, or untested but allowed by the settings.

torch is imported inside functions: importing fxpool must not import it.
"""

from __future__ import annotations

import functools
import sys

from fxpool import config, notices
from fxpool.torch_compat import versions

__all__ = ["current_refusal", "is_untested"]


def current_refusal() -> str | None:
    """Return why torch, Python or the platform is refused, or None if it is supported or allowed.

    Raises ConfigurationError if torch is newer than any tested release and the settings cannot be parsed.
    """
    return _refusal(_is_newer() and config.current().untested_torch)


def is_untested() -> bool:
    """Return whether torch is newer than any tested release and allowed by `untested_torch`. Warns once."""
    if not _is_newer() or not config.current().untested_torch:
        return False
    import torch

    major, minor = versions.NEWEST
    notices.once(
        "untested_torch",
        f"torch {torch.version.__version__} is newer than the newest release tested with fxpool, {major}.{minor}: "
        "graphs that do not fit are compiled by stock Inductor and counted in fxpool.stats()",
    )
    return True


@functools.cache
def _is_newer() -> bool:
    import torch

    try:
        return versions.parse(torch.version.__version__) > versions.NEWEST
    except ValueError:
        return False


@functools.cache
def _refusal(untested: bool) -> str | None:
    import torch

    return versions.refusal(torch.version.__version__, sys.version_info[:2], sys.platform, untested=untested)
