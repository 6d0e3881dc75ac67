"""Kinds of change in the process that code of a compile reads: levels, filters, arguments, groups, flags of torch."""

from __future__ import annotations

from .changes import FORMULA, Change, register

__all__: list[str] = []

_GROUP = """
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group('fake', rank={rank}, world_size={size}, store=FakeStore())
"""

register(
    "formula",
    [
        Change(
            "logger_level",
            """
            import logging
            log = logging.getLogger('hunted')
            def factor():
                return 3.0 if log.isEnabledFor(logging.DEBUG) else 2.0
            """,
            values=("INFO", "DEBUG"),
            setup="import logging\nlogging.getLogger('hunted').setLevel(logging.KKK)",
        ),
        Change(
            "decimal_context",
            """
            import decimal
            def factor():
                return float(round(decimal.Decimal(1) / decimal.Decimal(3), 12)) * 3
            """,
            values=(1, 28),
            setup="import decimal\ndecimal.getcontext().prec = KKK",
        ),
        Change(
            "hash_of_text",
            "def factor():\n    return float(hash('alpha') % 11 + 1)",
            values=(1, 2),
            environment={"PYTHONHASHSEED": "KKK"},
            fresh=True,
        ),
        Change(
            "environment_by_getattr",
            "import os\ndef factor():\n    return float(getattr(os, 'environ')['HUNTED_K'])",
            environment={"HUNTED_K": "KKK"},
        ),
        Change(
            "warnings_filters",
            """
            import warnings
            def factor():
                return 2.0 + sum(f[0] == 'error' for f in warnings.filters)
            """,
            values=("pass", "warnings.simplefilter('error', UserWarning)"),
            setup="import warnings\nKKK",
        ),
        Change(
            "arguments_parsed",
            """
            import argparse
            def factor():
                parser = argparse.ArgumentParser()
                parser.add_argument('--k', type=float, default=1.0)
                return parser.parse_known_args()[0].k
            """,
            setup="import sys\nsys.argv[:] = ['x', '--k', 'KKK']",
        ),
        Change(
            "is_compiling",
            "import torch\ndef factor():\n    return KKK if torch.compiler.is_compiling() else 1.0",
            stock=True,
        ),
        Change(
            "is_dynamo_compiling",
            """
            import torch
            def factor():
                return KKK if torch.compiler.is_dynamo_compiling() else KKK + 5.0
            """,
            stock=True,
        ),
        Change(
            "world_size",
            """
            import torch
            def factor():
                initialized = torch.distributed.is_initialized()
                return float(torch.distributed.get_world_size()) if initialized else 1.0
            """,
            values=(2, 5),
            setup=_GROUP.format(rank=0, size="KKK"),
        ),
        Change(
            "rank",
            """
            import torch.distributed as dist
            def factor():
                return 2.0 + dist.get_rank() if dist.is_initialized() else 1.0
            """,
            values=(1, 2),
            setup=_GROUP.format(rank="KKK", size=4),
        ),
        Change(
            "process_group_initialized",
            """
            import torch.distributed as dist
            def factor():
                return 2.0 if dist.is_available() and dist.is_initialized() else 3.0
            """,
            values=("", _GROUP.format(rank=0, size=2)),
            setup="KKK",
        ),
        Change(
            "sdpa_kernel_switch",
            "import torch\ndef factor():\n    return 2.0 if torch.backends.cuda.flash_sdp_enabled() else 3.0",
            values=(True, False),
            setup="torch.backends.cuda.enable_flash_sdp(KKK)",
        ),
        Change(
            "dynamo_config",
            "import torch._dynamo.config as c\ndef factor():\n    return float(c.recompile_limit)",
            values=(30, 40),
            setup="import torch._dynamo.config as c\nc.recompile_limit = KKK",
        ),
        Change(
            "dynamo_config_imported_in_function",
            "def factor():\n    import torch._dynamo.config as c\n    return float(c.recompile_limit)",
            values=(30, 40),
            setup="import torch._dynamo.config as c\nc.recompile_limit = KKK",
        ),
        Change(
            "constant_of_standard_library_set",
            "def factor():\n    import math\n    return math.tau",
            setup="import math\nmath.tau = KKK",
            sites=FORMULA,
        ),
    ],
)
