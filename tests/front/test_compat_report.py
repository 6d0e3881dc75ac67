"""The table of torch's private names: what counts as used, and how releases are told apart."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any


def _script() -> Any:
    path = Path(__file__).parents[2] / "docs" / "compat_report.py"
    spec = importlib.util.spec_from_file_location("compat_report", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


compat_report = _script()

SOURCE = """
import torch
import torch._guards as _guards
from torch._inductor import codecache, config as inductor_config
from torch.fx import Node

def function(mode):
    from torch._dynamo.exc import SkipFrame
    torch._C._something(mode)
    torch.sin(mode)
    inductor_config.cpp.cxx
    getattr(codecache, "since_some_release", None)
    hasattr(mode, "not_torch_s")
    with patched(codecache, "replaced", mode):
        pass
    return _guards.TracingContext.try_get().attribute
"""


def test_names_are_found_where_they_are_used() -> None:
    private = {name for name in compat_report.names_of(SOURCE) if compat_report.is_private(name)}
    assert private == {
        "torch._guards",
        "torch._inductor.codecache",
        "torch._inductor.config",
        "torch._inductor.config.cpp.cxx",
        "torch._inductor.codecache.since_some_release",
        "torch._inductor.codecache.replaced",
        "torch._dynamo.exc.SkipFrame",
        "torch._C._something",
        "torch._guards.TracingContext.try_get",
    }


def test_this_torch_is_asked() -> None:
    names = ["torch._guards.TracingContext", "torch._inductor.compile_fx.compile_fx", "torch._no_such_name"]
    release, _, facts = compat_report.ask(Path(sys.executable), names)
    import torch

    assert release == torch.__version__
    context, function, missing = (facts[name] for name in names)
    assert missing is None
    assert context is not None and context["kind"] == "class" and len(context["digest"]) == 8
    assert function is not None and "config_patches=None" in function["text"]


def test_releases_are_told_apart() -> None:
    def fact(text: str, digest: str) -> dict[str, str]:
        return {"kind": "function", "text": text, "digest": digest}

    used = {"torch._changed": ["a"], "torch._gone": ["a", "b"], "torch._same": ["b"]}
    old = {"torch._changed": fact("(x)", "1"), "torch._gone": fact("()", "1"), "torch._same": fact("()", "1")}
    new = {"torch._changed": fact("(x, y)", "2"), "torch._gone": None, "torch._same": fact("()", "1")}
    page = compat_report.page(used, [("2.10.0", "3.5", new), ("2.9.1+cpu", None, old)])
    assert "| `torch._changed` | a | b | a |" in page
    assert "| `torch._gone` | a | · | a, b |" in page
    assert page.index("| `torch._same` | a | a | b |") > page.index("The same in all of them")
    assert "- `torch._gone`: last in 2.9" in page
    assert re.search(r"`torch._changed`\n    - 2.9: `\(x\)`\n    - 2.10: `\(x, y\)`", page)


def test_the_page_is_of_the_names_that_are_used_now() -> None:
    """The facts are of environments that only `make compat` makes; the names are of the sources."""
    text = compat_report.PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE)) == set(compat_report.names_used())
