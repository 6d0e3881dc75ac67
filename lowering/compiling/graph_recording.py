"""Records graphs for ``fxpool build`` instead of compiling them (the setting `capture`).

    graph ──▶ capture ──▶ key and request ──▶ a file in the directory of the setting
                └─▶ this process runs the graph eagerly: it compiles nothing and looks nothing up

A machine that has other things to do captures what a run needs, and another one compiles it. A graph that no other
machine could compile, or whose result has no key, is counted with the reason, and runs eagerly as well.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import NoReturn

from fxpool import config, counters, notices
from fxpool.errors import FxpoolError, RecordedError
from fxpool.lowering.core.attempt import Attempt
from fxpool.lowering.request.captured_graph import Captured

__all__ = ["is_on", "record"]


def is_on(settings: config.Settings) -> bool:
    """Return whether graphs are recorded instead of being compiled."""
    return settings.capture is not None


def record(captured: Captured, attempt: Attempt) -> NoReturn:
    """Write a graph's request into the directory, unless it is there. Always raises RecordedError."""
    directory = attempt.settings.capture
    assert directory is not None
    reason = _obstacle(captured)
    if reason:
        counters.count("captures", f"not:{reason}")
        attempt.reasons.append(f"not_recorded:{reason}")
    else:
        try:
            counters.count("captures", "recorded" if _write(captured, directory, attempt.settings) else "present")
        except (FxpoolError, OSError) as error:
            counters.count("captures", "not:write_failed")
            message = error.message if isinstance(error, FxpoolError) else str(error)
            notices.once("capture", f"cannot record graphs in {directory}: {message}")
    raise RecordedError(attempt.label)


def _obstacle(captured: Captured) -> str:
    """Return why no other machine can compile a graph, or ""."""
    if captured.stays is not None:
        return captured.stays.reason
    if captured.key is None:
        return captured.bypass.reason if captured.bypass is not None else "unknown"
    if captured.placement.needed:
        return f"device_needed:{captured.placement.needed}"
    return "templates_timed" if captured.request.times_templates else ""


def _write(captured: Captured, directory: Path, settings: config.Settings) -> bool:
    """Return False if another process has recorded the graph. Raises FxpoolError, OSError."""
    # Only while recording.
    from fxpool.codecache.bundle import capture_directory
    from fxpool.codecache.bundle.authentication import keyring_of
    from fxpool.codecache.key import build_digests

    request, key = captured.request, captured.request.key
    assert key is not None
    name = capture_directory.name_of(key.digest, request.values)
    if os.path.exists(directory / name):
        return False
    digests = build_digests.digests(request.toolchain_dir, cpp=not request.devices)
    # Without this machine's directories and the program's wishes for output.
    request = dataclasses.replace(
        request, store=None, bounds=None, toolchain_dir=None, debug_files=None, logs=None, builds=digests
    )
    origin = request.origin
    capture = capture_directory.Capture(
        key=key.digest,
        label=request.label,
        function=origin.described if origin is not None else "",
        devices=tuple(facts.name for facts in request.devices),
        system=dict(captured.system),
        request=request.dump(),
    )
    capture_directory.write(str(directory), name, capture, keyring_of(settings.remote_key_file))
    return True
