"""Whether this process's torch is supported, or tried at the user's wish.

torch is imported inside functions: whoever imports fxpool may not want it.
"""

from __future__ import annotations

import functools
import sys

from fxpool import config, notices
from fxpool.torch_compat import versions

__all__ = ["current_refusal", "is_untested"]


def current_refusal() -> str | None:
    """Return why torch, Python or the platform is refused, or None if it is supported or may be tried.

    Raises ConfigurationError where torch is newer than any tested and the settings do not parse.
    """
    return _refusal(_is_newer() and config.current().untested_torch)


def is_untested() -> bool:
    """Return whether torch is newer than any tested, and the setting `untested_torch` wants to try it. Warns once."""
    if not _is_newer() or not config.current().untested_torch:
        return False
    import torch

    major, minor = versions.NEWEST
    notices.once(
        "untested_torch",
        f"torch {torch.__version__} is newer than the newest release tested with fxpool, {major}.{minor}: "
        "graphs that do not fit are compiled by stock Inductor and counted in fxpool.stats()",
    )
    return True


@functools.cache
def _is_newer() -> bool:
    import torch

    try:
        return versions.parse(torch.__version__) > versions.NEWEST
    except ValueError:
        return False


@functools.cache
def _refusal(untested: bool) -> str | None:
    import torch

    return versions.refusal(torch.__version__, sys.version_info[:2], sys.platform, untested=untested)
