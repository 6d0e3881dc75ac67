"""Run a script with fxpool under its `torch.compile(model)`, without changing the script.

    python examples/unchanged_code/run.py examples/unchanged_code/train.py

`fxpool.install()` lets the backend "inductor" compile on fxpool's workers. With the environment variable, whole graphs
go to them instead of Triton kernels only; set it before torch imports Inductor.
"""

import os
import runpy
import sys

os.environ.setdefault("TORCHINDUCTOR_FX_COMPILE_MODE", "subprocess")

import fxpool


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: run.py SCRIPT [ARGUMENT]...")
    fxpool.install()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
    stats = fxpool.stats()
    print(f"graphs compiled by fxpool's workers: {stats['borrowed'].get('fx', 0)}; not sent: {stats['fallbacks']}")


if __name__ == "__main__":
    main()
