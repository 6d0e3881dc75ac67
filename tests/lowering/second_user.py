"""Become another user and run a program there: python second_user.py UID PROGRAM

The capability to read what is closed to others stays, as the interpreter may lie in root's home. It changes nothing of
who owns what, which is what the tests are about. Exits with 77 where that can't be done.
"""

from __future__ import annotations

import ctypes
import os
import sys

_KEEP_CAPABILITIES, _AMBIENT, _RAISE = 8, 47, 2
_READ_EVERYTHING = 2  # CAP_DAC_READ_SEARCH


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Data(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


def become(uid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> None:
        if getattr(libc, name)(*arguments) != 0:
            raise OSError(ctypes.get_errno(), name)

    call("prctl", _KEEP_CAPABILITIES, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    wanted = 1 << _READ_EVERYTHING
    header = _Header(0x20080522, 0)
    call("capset", ctypes.byref(header), (_Data * 2)(_Data(wanted, wanted, wanted), _Data(0, 0, 0)))
    call("prctl", _AMBIENT, _RAISE, _READ_EVERYTHING, 0, 0)


if __name__ == "__main__":
    try:
        become(int(sys.argv[1]))
    except OSError as error:
        print(error, file=sys.stderr)
        sys.exit(77)
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[2]])
