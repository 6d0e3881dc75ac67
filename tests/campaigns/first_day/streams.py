"""Rows about standard input, output and error: closed, full, broken, a terminal."""

from __future__ import annotations

from .environment import Site
from .row import PLAIN, Row
from .screen import Screen
from .verdict import Expected, Run

__all__ = ["ROWS"]

_LOSSES = (
    PLAIN
    + """
for step in range(8):
    print(f"step {step} loss {1 / (step + 1):.4f}", flush=True)
    x = torch.arange(24.0).reshape(4, 6)
    own = torch.compile(lambda x: (x * (step + 2)).cos().sum(), backend="fxpool", dynamic=False)
    if step < 2:
        own(x)
"""
)
_ON_A_TERMINAL = """
import fcntl, os, pty, struct, sys, termios

pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
with open("{root}/terminal", "wb") as file:
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        if not data:
            break
        file.write(data)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def _all_lines_shown(site: Site, run: Run) -> str:
    screen = Screen(100)
    screen.write((site.root / "terminal").read_bytes().decode(errors="replace"))
    lines = [line.strip() for line in screen.lines()]
    lost = [number for number in range(8) if f"step {number} loss {1 / (number + 1):.4f}" not in lines]
    return f"the terminal does not show {len(lost)} of 8 lines that the program printed" if lost else ""


def _on_a_terminal(name: str, **environment: str) -> Row:
    return Row(
        name=name,
        program=_LOSSES,
        files={"on_a_terminal.py": _ON_A_TERMINAL},
        shell='exec {python} on_a_terminal.py "$@"',
        environment={"TERM": "xterm-256color", **environment},
        expected=Expected(hears=False),
        also=_all_lines_shown,
    )


# A warning that is not heard must not be the reason for a switch-off.
_DEAF = Expected(hears=False)

ROWS = [
    Row(name="stdin closed", shell='exec "$@" <&-'),
    Row(name="stdout closed", shell='exec "$@" >&-'),
    Row(name="stderr closed", shell='exec "$@" 2>&-', expected=_DEAF),
    Row(name="all three closed", shell='exec "$@" <&- >&- 2>&-', expected=_DEAF),
    Row(name="stdout full", shell='exec "$@" >/dev/full'),
    Row(name="stderr full", shell='exec "$@" 2>/dev/full', expected=_DEAF),
    Row(name="stdout a broken pipe", shell='set -o pipefail; "$@" | true'),
    Row(name="stderr a broken pipe", shell='set -o pipefail; "$@" 2>&1 >/dev/null | true', expected=_DEAF),
    Row(name="stdin a terminal's end of file", shell='exec "$@" </dev/null'),
    Row(name="nohup", shell='exec nohup "$@"'),
    _on_a_terminal("a terminal"),
    _on_a_terminal("FXPOOL_PROGRESS=1 on a terminal", FXPOOL_PROGRESS="1"),
    Row(
        name="FXPOOL_PROGRESS=1 in a file",
        environment={"FXPOOL_PROGRESS": "1"},
        shell='exec "$@" 2>{tmp}/progress',
        expected=_DEAF,
    ),
    Row(
        name="FXPOOL_PROGRESS=1, stderr closed",
        environment={"FXPOOL_PROGRESS": "1"},
        shell='exec "$@" 2>&-',
        expected=_DEAF,
    ),
    Row(
        name="FXPOOL_PROGRESS=1, stderr full",
        environment={"FXPOOL_PROGRESS": "1"},
        shell='exec "$@" 2>/dev/full',
        expected=_DEAF,
    ),
    Row(
        name="FXPOOL_PROGRESS=1, stderr a broken pipe",
        environment={"FXPOOL_PROGRESS": "1"},
        shell='set -o pipefail; "$@" 2>&1 >/dev/null | true',
        expected=_DEAF,
    ),
    # A display never fails the program: it may report its failure, nothing else.
    Row(
        name="FXPOOL_PROGRESS in no directory",
        environment={"FXPOOL_PROGRESS": "{root}/none/progress.log"},
        expected=Expected(pool=None, cache=True),
    ),
    Row(
        name="FXPOOL_TRACE in no directory",
        environment={"FXPOOL_TRACE": "{root}/none/trace.json"},
        expected=Expected(pool=None, cache=True),
    ),
    Row(
        name="FXPOOL_TRACE on a full disk",
        environment={"FXPOOL_TRACE": "/dev/full"},
        expected=Expected(pool=None, cache=True),
    ),
]
