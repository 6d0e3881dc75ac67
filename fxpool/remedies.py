"""What to do about errors, for messages that several errors or modules share."""

from __future__ import annotations

import sys

__all__ = ["CREATE_KEY", "INSTALL_COMPILER", "INSTALL_PYTHON_HEADERS", "NO_ARGUMENTS", "SHORTAGES"]

#: What to do about a shortage of the host, by errno.
SHORTAGES = {
    "EMFILE": "raise the limit of open files (`ulimit -n`) where the server is started",
    "ENFILE": "the host's table of open files is full: raise fs.file-max",
    "EAGAIN": "raise the limit of processes (`ulimit -u`, or pids.max of the cgroup) where the server is started",
    "ENOMEM": "the host is out of memory: set FXPOOL_WORKERS or FXPOOL_MEMORY_HIGH_WATERMARK to a smaller value",
    "ENOSPC": "make room (bytes or inodes: `df`, `df -i`), or set FXPOOL_RUNTIME_DIR to a directory on another disk",
    "EDQUOT": "make room in the quota, or set FXPOOL_RUNTIME_DIR to a directory on another disk",
    "EROFS": "set FXPOOL_RUNTIME_DIR to a writable directory",
    "ENOENT": "a directory of the server was removed: run `fxpool stop`; the next process starts a new server",
}
CREATE_KEY = (
    "create a key with `fxpool cache key FILE` on one machine, copy it to the others, and set "
    "FXPOOL_REMOTE_KEY_FILE=FILE"
)
INSTALL_COMPILER = (
    "install a compiler (Debian and Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++) or set CXX to its path"
)
INSTALL_PYTHON_HEADERS = (
    "install the headers of this Python (Debian and Ubuntu: apt-get install "
    f"python{sys.version_info[0]}.{sys.version_info[1]}-dev; Fedora: dnf install python3-devel)"
)
NO_ARGUMENTS = (
    "set CXX to a program without arguments: instead of 'ccache g++', a link named g++ to ccache "
    "(/usr/lib/ccache/g++ on Debian and Ubuntu), or a script that runs the command"
)
