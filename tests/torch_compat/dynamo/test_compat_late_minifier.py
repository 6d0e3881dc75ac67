"""`late_minifier` leaves out an import, and nothing that torch's object around a backend does."""

from __future__ import annotations

import os
import subprocess
import sys

COUNTED = """
import sys, torch
from torch._dynamo import config, eval_frame
from fxpool.torch_compat.dynamo import late_minifier

graphs = []
def count(gm, inputs, **options):
    graphs.append(options)
    return gm.forward
MINIFIER = "torch._dynamo.repro.after_dynamo"
for _ in range(2):
    late_minifier.import_late("count")
step = torch.compile(lambda x: x + 1, backend=count, options={"a": 1})
assert MINIFIER not in sys.modules
assert step(torch.ones(2)).tolist() == [2.0, 2.0] and graphs == [{"options": {"a": 1}}]
assert MINIFIER in sys.modules

from torch._dynamo.repro import after_dynamo
backend = torch._TorchCompileWrapper(count, None, {"a": 1}, None)
theirs = eval_frame.get_compiler_fn(backend)
assert type(theirs) is after_dynamo.WrapBackendDebug, "once it is imported, torch's own is used"
ours = late_minifier._Wrapped(backend, "count")
assert vars(ours) == vars(theirs)
config.repro_after = "nonsense"
for wrapped in (theirs, ours):
    try:
        wrapped(None, [])
    except AssertionError:
        continue
    raise SystemExit("torch's setting was not read")
assert len(graphs) == 1
"""
OTHERS = """
import sys, torch
from fxpool.torch_compat.dynamo import late_minifier
late_minifier.import_late("fxpool")
torch.compile(lambda x: x, backend=lambda gm, inputs: gm.forward)
assert "torch._dynamo.repro.after_dynamo" in sys.modules
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item() == 2.0
"""


def _run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_backend_is_called_by_torchs_own_object() -> None:
    _run(COUNTED)


def test_other_backends_get_torchs_own_object_at_once() -> None:
    _run(OTHERS)
