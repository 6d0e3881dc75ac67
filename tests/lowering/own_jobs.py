"""The jobs of this process, in a pool that the session's other test processes use too."""

from __future__ import annotations

import os
from typing import Any


def running(status: dict[str, Any]) -> list[dict[str, Any]]:
    """The running jobs in a pool's `status` that this process waits for."""
    return [job for job in status.get("running", []) if os.getpid() in job["wanted_by"]]


def waiting(status: dict[str, Any]) -> list[dict[str, Any]]:
    """The unfinished jobs in a pool's `status` that this process submitted."""
    return [job for job in status.get("waiting", []) if job["client"] == os.getpid()]
