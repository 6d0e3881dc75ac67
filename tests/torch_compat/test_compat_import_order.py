"""Dynamo is imported ahead of Inductor, by each module here: threads with another order break both, see `torch_compat`.

The imports run in child processes, which stop at the first of the two.
"""

from __future__ import annotations

from pathlib import Path

from processes import run_python

import fxpool.torch_compat

FOLDER = Path(fxpool.torch_compat.__file__).parent

PROGRAM = """
import importlib, os, sys
import torch

class First:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch._dynamo", "torch._inductor"):
            print(module, name, flush=True)
            os._exit(0)

sys.meta_path.insert(0, First())
for module in sys.argv[1:]:
    if (child := os.fork()) == 0:
        importlib.import_module(module)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, module
"""


def test_each_module_imports_dynamo_first() -> None:
    using = [path for path in FOLDER.rglob("*.py") if "torch._inductor" in path.read_text()]
    files = [path.relative_to(FOLDER).with_suffix("").parts for path in using]
    modules = sorted(".".join(("fxpool.torch_compat", *parts)).removesuffix(".__init__") for parts in files)
    printed = run_python(["-c", PROGRAM, *modules]).splitlines()
    assert "fxpool.torch_compat.state.configs torch._dynamo" in printed
    assert not [line for line in printed if line.endswith("torch._inductor")]


def test_installing_imports_dynamo_first() -> None:
    program = PROGRAM[: PROGRAM.index("for module")] + "module = 'install'\nimport fxpool\nfxpool.install()\n"
    assert run_python(["-c", program]).split() == ["install", "torch._dynamo"]
