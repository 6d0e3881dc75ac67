"""A program that forks while a thread of fxpool's is in the middle of something."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import run_python

# Children of moments in which the thread imports what it needs, looks at the host, starts a server, sends a request.
PROGRAM = """
import json, os, select, signal, time
import torch, fxpool
from fxpool import counters
x = torch.ones(6, 8)
run = torch.compile(lambda x: (x @ x.T).softmax(-1).sin(), backend="fxpool")
run(x)
run(x)  # now its thread begins

def child():
    from fxpool.lowering.core.runtime import runtime
    counters.count("hits")
    runtime.store()
    runtime.pool()
    fxpool.wait(0)

pids = []
for _ in range(15):
    pid = os.fork()
    if not pid:
        code = 1
        try:
            child()
            code = 0
        finally:
            os._exit(code)
    pids.append(os.pidfd_open(pid))
    time.sleep(0.04)
ended = []
for pidfd in pids:
    over = bool(select.select([pidfd], [], [], 60)[0])
    if not over:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    ended.append(over and os.waitid(os.P_PIDFD, pidfd, os.WEXITED).si_status == 0)
states = [one["state"] for one in fxpool.wait(100)]
print(json.dumps([ended, states]))
"""


@pytest.mark.slow
def test_children_of_the_first_use_of_the_pool(known_host: Path, cache: Path) -> None:
    printed = run_python(["-c", PROGRAM], TORCHINDUCTOR_FX_COMPILE_MODE="async+subprocess")
    ended, states = json.loads(printed.strip().splitlines()[-1])
    assert ended == [True] * 15, "a child waits for what nobody has"
    assert states == ["ready"]
