"""Jobs that tell what their worker was born with, and what it had to do for a compile."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import sys
from typing import Any
from unittest import mock

__all__ = ["compile_and_count", "inherited"]


def _tables() -> dict[str, int]:
    from torch._inductor.fx_passes import joint_graph, post_grad, pre_grad

    return {
        m.__name__.rpartition(".")[2]: m.lazy_init.cache_info().currsize for m in (joint_graph, post_grad, pre_grad)
    }


def inherited(data: bytes) -> bytes:
    """Job: what was traced and imported before this process was forked."""
    report = {
        "tables": _tables(),
        "triton": "triton.compiler.code_generator" in sys.modules,
        "threads": len(os.listdir("/proc/self/task")),
    }
    return json.dumps(report).encode()


def compile_and_count(data: bytes) -> bytes:
    """Job: compile a request as a worker does; how many patterns were traced for it, and the generated code.

    Nothing is kept, so that the answer is this compile's.
    """
    from torch._inductor import pattern_matcher

    from fxpool.lowering.artifact.entry_parts import decode_reply
    from fxpool.lowering.worker import compiler, jobs
    from fxpool.torch_compat.inductor import aot

    registered: collections.Counter[str] = collections.Counter()
    before = _tables()
    original = pattern_matcher.gen_pattern_and_search_gm

    def counted(*args: object, **kwargs: object) -> object:
        registered["traced"] += 1
        return original(*args, **kwargs)

    load_code = compiler.load_code

    with contextlib.ExitStack() as stack:

        def loaded(*arguments: Any) -> Any:
            others = load_code(*arguments)  # a worker refuses to begin if a function of torch is replaced already
            stack.enter_context(mock.patch.object(pattern_matcher, "gen_pattern_and_search_gm", counted))
            return others

        stack.enter_context(mock.patch.object(compiler, "load_code", loaded))
        answer = decode_reply(jobs.compile_job(data))
    assert answer.artifact is not None, answer
    graphs = aot.graphs_of(aot.load_result(answer.artifact.result))
    text = "\n".join(graph.source_code for graph in graphs)
    report = {"before": before, "after": _tables(), "traced": registered["traced"], "graphs": len(graphs)}
    report["code"] = re.sub(r"/\S+/fxpool-tmp-scratch-\w+", "", text)
    return json.dumps(report).encode()
