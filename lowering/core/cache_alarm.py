"""The alarm for a cache that does nothing: a process that ends with compiled graphs, and neither hits nor new entries.

It is a line of the log at the end of the process, and a count by reason (`uncached`) in the host's statistics. Imports
the explanation of graphs inside functions: most processes do not need it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from fxpool import counters, notices, quantities, reasons

__all__ = ["sound"]

log = notices.logger(__name__)

# Counters that show that the cache was of use to this process, or to a later one.
_USES = ("hits", "joined", "entries_written")
_TABLES_OF_USES = (("remote", ("hits", "writes")), ("frames", ("served",)), ("captures", ("recorded", "present")))
# In the order in which they are blamed. Graphs that are compiled fast are left out by a setting.
_BLAMED = ("switched_off", "bypasses", "fallbacks")
_WANTED = {("bypasses", "compiled_fast")}
_UNKNOWN = "unknown"
#: The reason of a process in which Inductor compiled all graphs itself after `fxpool.install()`.
_NO_GRAPH = "no_graph_came"


def sound(counted: Mapping[str, Any]) -> None:
    """Log and count why this process did not use the cache, if it compiled graphs. `counted`: its counts alone."""
    used = any(counted.get(name) for name in _USES)
    if used or any(counted[table].get(name) for table, names in _TABLES_OF_USES for name in names):
        return
    compiled = sum(counted["compiles"].values())
    if compiled:
        reason, why = _reason(counted)
    elif _inductor_compiled() and not sum(counted["borrowed"].values()):
        reason, why = _NO_GRAPH, _why_no_graph()
    else:
        return
    if not why:
        return
    counters.count("uncached", reason)
    graphs = f"{quantities.counted(compiled, 'graph')} compiled" if compiled else "no graph of this process came here"
    log.warning("the cache was of no use (%s, none loaded, none stored): %s", graphs, why)


def _reason(counted: Mapping[str, Any]) -> tuple[str, str]:
    """Return the most frequent reason of the first counter that has some, and its text; no text if it is wanted."""
    for counter in _BLAMED:
        table = {name: n for name, n in counted[counter].items() if n}
        if not table:
            continue
        name = max(table, key=table.__getitem__)
        if (counter, name) in _WANTED:
            return name, ""
        known = reasons.find(counter, name)
        text = f"{known.meaning}. {known.advice}".strip() if known is not None else "fxpool.explain() tells why."
        return name, f"{text} ({name})"
    return _UNKNOWN, "no reason was counted, please report it with the output of `fxpool bug-report`"


def _inductor_compiled() -> bool:
    """Return whether fxpool is installed in Inductor, and Inductor has lowered graphs in this process."""
    hooks = sys.modules.get("fxpool.torch_compat.inductor.hooks")
    return hooks is not None and hooks.installed() and "torch._inductor.graph" in sys.modules


def _why_no_graph() -> str:
    """Return why Dynamo's graphs did not come to fxpool; empty if it made none."""
    from fxpool.explanation.process import why_no_graph
    from fxpool.torch_compat.dynamo.traced_functions import traced

    counts = traced()
    if not counts.graphs or counts.off:
        return ""
    explained = why_no_graph(counts)
    return f"{explained.why}. {explained.advice}"
