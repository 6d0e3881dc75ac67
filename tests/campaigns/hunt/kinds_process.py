"""Kinds of change in the state of the process, which code of a compile reads through the standard library or numpy."""

# ruff: noqa: E501 (a table of programs' texts)

from __future__ import annotations

from .changes import FORMULA, Change, block, register

__all__: list[str] = []


def _reads(
    name: str,
    imports: str,
    expression: str,
    setup: str,
    values: tuple[object, ...],
    *,
    stock: bool = False,
    environment: dict[str, str] | None = None,
    fresh: bool = False,
) -> Change:
    """``factor()`` is an expression of what modules say of the process; the main module's `setup` changes it."""
    helper = f"{imports}\ndef factor():\n    return {expression}"
    return Change(
        name,
        helper,
        values=values,
        setup=f"{imports}\n{block(setup)}",
        stock=stock,
        environment=environment or {},
        fresh=fresh,
        sites=FORMULA,
    )


register(
    "process",
    [
        # The interpreter.
        _reads("recursion_limit", "import sys", "sys.getrecursionlimit() / 1000", "sys.setrecursionlimit(KKK)", (2000, 3000)),
        _reads("switch_interval", "import sys", "round(sys.getswitchinterval(), 2)", "sys.setswitchinterval(KKK)", (0.25, 0.5)),
        _reads("digits_of_integers", "import sys", "sys.get_int_max_str_digits() / 1000", "sys.set_int_max_str_digits(KKK)", (5000, 6000)),
        _reads("garbage_collector", "import gc", "2.0 + gc.isenabled()", "gc.KKK()", ("enable", "disable")),
        _reads("garbage_threshold", "import gc", "gc.get_threshold()[2] / 10", "gc.set_threshold(700, 10, KKK)", (20, 30)),
        _reads("display_hook", "import sys", "2.0 + (sys.displayhook is sys.__displayhook__)", "KKK", ("pass", "sys.displayhook = print")),
        _reads("excepthook", "import sys", "2.0 + (sys.excepthook is sys.__excepthook__)", "KKK", ("pass", "sys.excepthook = lambda *exc: None")),
        _reads("traceback_limit", "import sys", "float(getattr(sys, 'tracebacklimit', 5))", "KKK", ("pass", "sys.tracebacklimit = 7")),
        _reads("attribute_of_sys", "import sys", "sys.hunted", "sys.hunted = KKK", (2.0, 3.0)),
        _reads("attribute_of_main", "import sys", "sys.modules['__main__'].hunted", "sys.modules['__main__'].hunted = KKK", (2.0, 3.0)),
        _reads("module_in_sys_modules", "import sys", "2.0 + ('tabnanny' in sys.modules)", "KKK", ("pass", "import tabnanny")),
        _reads("meta_path", "import sys", "1.0 + len([f for f in sys.meta_path if type(f).__name__ == 'Hunted'])",
               "class Hunted:\n    find_spec = lambda self, name, path, target=None: None\nsys.meta_path.extend([Hunted()] * KKK)", (1, 2)),
        _reads("optimized", "", "3.0 if __debug__ else 2.0", "", ("", "1"), environment={"PYTHONOPTIMIZE": "KKK"}, fresh=True),
        _reads("assertions", "", "2.0 + bool(checked())\ndef checked():\n    try:\n        assert False\n    except AssertionError:\n        return True", "",
               ("", "1"), environment={"PYTHONOPTIMIZE": "KKK"}, fresh=True),
        _reads("flags", "import sys", "2.0 + sys.flags.utf8_mode", "", ("0", "1"), environment={"PYTHONUTF8": "KKK"}, fresh=True),
        _reads("development_mode", "import sys", "2.0 + sys.flags.dev_mode", "", ("", "1"), environment={"PYTHONDEVMODE": "KKK"}, fresh=True),
        _reads("stack_walked", "import inspect", "KKK if any(frame.function == '_call' for frame in inspect.stack(0)) else 1.0", "", (2.0, 3.0), stock=True),
        # The operating system.
        _reads("umask", "import os", "old_umask() / 8\ndef old_umask():\n    mask = os.umask(0)\n    os.umask(mask)\n    return mask + 1", "os.umask(KKK)", (0o22, 0o27)),
        _reads("affinity", "import os", "1.0 + len(os.sched_getaffinity(0))", "os.sched_setaffinity(0, list(os.sched_getaffinity(0))[KKK:])", (0, 1)),
        _reads("resource_limit", "import resource", "2.0 + (resource.getrlimit(resource.RLIMIT_CORE)[0] == 0)",
               "resource.setrlimit(resource.RLIMIT_CORE, (KKK, resource.getrlimit(resource.RLIMIT_CORE)[1]))", (0, 4096)),
        _reads("nice_value", "import os", "2.0 + os.nice(0)", "os.nice(KKK)", (0, 3)),
        _reads("signal_handler", "import signal", "2.0 + (signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN)", "KKK", ("pass", "signal.signal(signal.SIGUSR1, signal.SIG_IGN)")),
        _reads("time_zone", "import time", "1.0 + abs(time.timezone) / 3600", "time.tzset()", ("UTC1", "UTC2"), environment={"TZ": "KKK"}),
        _reads("clock_frozen", "import time", "time.time()", "time.time = lambda: KKK", (2.0, 3.0)),
        _reads("locale", "import locale", "2.0 + (locale.setlocale(locale.LC_CTYPE) == 'C')", "locale.setlocale(locale.LC_CTYPE, 'KKK')", ("C", "C.UTF-8")),
        _reads("home_directory", "import os", "float(len(os.path.basename(os.path.expanduser('~'))))", "os.environ['HOME'] = '/KKK'", ("aa", "bbb")),
        _reads("variable_expanded", "import os", "float(os.path.expandvars('$HUNTED_K'))", "", (2.0, 3.0), environment={"HUNTED_K": "KKK"}),
        _reads("variable_of_bytes", "import os", "float(os.environb[b'HUNTED_K'])", "", (2.0, 3.0), environment={"HUNTED_K": "KKK"}),
        _reads("variable_of_shell", "import subprocess", "float(subprocess.check_output(['sh', '-c', 'echo $HUNTED_K']))", "", (2.0, 3.0), environment={"HUNTED_K": "KKK"}),
        _reads("command_on_path", "import shutil", "2.0 + bool(shutil.which('hunted-command'))",
               "import os\nos.makedirs('KKK', exist_ok=True)\nopen('KKK/hunted-command', 'w').close()\nos.chmod('KKK/hunted-command', 0o755)\nos.environ['PATH'] = os.path.abspath('bin') + ':' + os.environ['PATH']",
               ("other", "bin")),
        _reads("file_exists", "import os", "2.0 + os.path.exists(os.path.join(os.path.dirname(__file__), 'marker'))", "KKK", ("pass", "open('marker', 'w').close()")),
        _reads("files_counted", "import glob, os", "1.0 + len(glob.glob(os.path.join(os.path.dirname(__file__), '*.marker')))",
               "[open(f'{number}.marker', 'w').close() for number in range(KKK)]", (1, 2)),
        # Threads and processes.
        _reads("thread_alive", "import threading", "2.0 + any(thread.name == 'hunted' for thread in threading.enumerate())", "KKK",
               ("pass", "threading.Thread(target=__import__('time').sleep, args=(3600,), name='hunted', daemon=True).start()")),
        _reads("name_of_thread", "import threading", "float(len(threading.current_thread().name))", "threading.current_thread().name = 'KKK'", ("aa", "bbb")),
        _reads("name_of_process", "import multiprocessing", "float(len(multiprocessing.current_process().name))", "multiprocessing.current_process().name = 'KKK'", ("aa", "bbb")),
        _reads("start_method", "import multiprocessing", "float(len(multiprocessing.get_start_method()))", "multiprocessing.set_start_method('KKK')", ("fork", "spawn")),
        # Settings of libraries.
        _reads("logging_disabled", "import logging", "2.0 + logging.root.manager.disable / 10", "logging.disable(KKK)", (10, 20)),
        _reads("level_name", "import logging", "float(logging.getLevelName('HUNTED'))", "logging.addLevelName(KKK, 'HUNTED')", (2, 3)),
        _reads("handlers_of_logger", "import logging", "2.0 + logging.getLogger('hunted').hasHandlers()", "logging.getLogger('hunted').propagate = KKK\nlogging.basicConfig()", (False, True)),
        _reads("codec_registered", "import codecs", "float(codecs.lookup('hunted').encode('')[1])",
               "codecs.register(lambda name: codecs.CodecInfo(lambda text: (b'', KKK), None, name=name) if name == 'hunted' else None)", (2, 3)),
        _reads("reducer_registered", "import copy, copyreg, types", "copy.copy(types.SimpleNamespace(k=1.0)).k",
               "copyreg.pickle(types.SimpleNamespace, lambda space: (types.SimpleNamespace, (), {'k': KKK}))", (2.0, 3.0)),
        _reads("error_state_of_numpy", "import numpy", "float(len(numpy.geterr()['divide']))", "numpy.seterr(divide='KKK')", ("warn", "raise")),
        _reads("print_options_of_numpy", "import numpy", "float(numpy.get_printoptions()['precision'])", "numpy.set_printoptions(precision=KKK)", (2, 3)),
        _reads("random_state_of_numpy", "import numpy", "float(numpy.random.get_state()[1][0])", "numpy.random.seed(KKK)", (2, 3)),
        _reads("print_options_of_torch", "import torch", "float(torch._tensor_str.PRINT_OPTS.precision)", "torch.set_printoptions(precision=KKK)", (2, 3)),
        _reads("precision_of_mpmath", "import mpmath", "float(mpmath.mp.dps)", "mpmath.mp.dps = KKK", (20, 30)),
    ],
)  # fmt: skip
