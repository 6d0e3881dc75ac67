"""Rows about the machine: how its disks are mounted, what it lacks, and a clock that is wrong."""

from __future__ import annotations

import os
import subprocess
import sysconfig

from .directories import toolchain_in
from .environment import Site
from .needs import command, mounts
from .row import Row
from .verdict import Expected

__all__ = ["ROWS"]


def _mounted(steps: str) -> str:
    """A shell in a private name space, after the `steps` that mount."""
    return f'exec unshare -m --propagation private bash -c \'{steps} && exec "$@"\' bash "$@"'


# All devices that programs use, without shared memory.
_NO_SHM = (
    "mkdir -p {root}/dev && mount -t tmpfs -o mode=755 first-day {root}/dev && "
    "cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty {root}/dev && "
    "ln -s /proc/self/fd {root}/dev/fd && mount --move {root}/dev /dev"
)
_READ_ONLY_ROOT = "mount --bind {root} {root} && mount -o remount,bind,ro /"
_NOEXEC = "mount --bind {tmp} {tmp} && mount -o remount,bind,noexec {tmp}"
_INCLUDE = sysconfig.get_paths()["include"]

# The clock of the day is off by SKEW seconds in each process that loads this; files have the kernel's times.
_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

#define SKEW -400000000L

int clock_gettime(clockid_t clock, struct timespec* now) {
    static int (*real)(clockid_t, struct timespec*);
    if (!real) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, now);
    if (!status && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += SKEW;
    return status;
}

int gettimeofday(struct timeval* now, void* zone) {
    struct timespec exact;
    int status = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return status;
}

time_t time(time_t* result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
"""
_WRONG = {"LD_PRELOAD": "{root}/clock.so"}


def _clock(site: Site) -> None:
    source = site.root / "clock.c"
    source.write_text(_CLOCK)
    # Compiled as C: in C++ the declarations of glibc promise to throw nothing.
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", source, "-o", site.root / "clock.so", "-ldl"], check=True)
    seen = subprocess.run(
        ["date", "+%Y"], env={"LD_PRELOAD": str(site.root / "clock.so"), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    now = subprocess.run(["date", "+%Y"], capture_output=True, text=True, check=True)
    if int(seen.stdout) >= int(now.stdout) - 11:
        raise RuntimeError(f"the clock is not wrong: {seen.stdout}")


ROWS = [
    Row(name="TMPDIR noexec", shell=_mounted(_NOEXEC), needs=(mounts,)),
    Row(
        name="read-only root",
        shell=_mounted(_READ_ONLY_ROOT + " && ! touch /first-day 2>/dev/null"),
        needs=(mounts,),
    ),
    Row(
        name="read-only root, no usable HOME",
        shell=_mounted(_READ_ONLY_ROOT),
        environment={"HOME": "/nowhere"},
        prepare=toolchain_in(f"{{tmp}}/fxpool-cache-{os.getuid()}"),
        needs=(mounts,),
    ),
    Row(name="no /dev/shm", shell=_mounted(_NO_SHM), needs=(mounts,)),
    # The known tool chain, which other rows use, would be compiled again.
    Row(
        name="no Python.h",
        shell=_mounted(f"mount -t tmpfs first-day {_INCLUDE}"),
        needs=(mounts,),
        fresh=True,
        expected=Expected(
            error=r"does not find Python\.h.*install the headers.*-dev",
            status=1,
            again_status=1,
            processes=0,
            again_processes=0,
            pool=False,
            cache=False,
        ),
    ),
    Row(name="a clock 12 years slow", environment=_WRONG, prepare=_clock, needs=(command("gcc"),)),
    Row(
        name="a clock 12 years slow, then right",
        environment=_WRONG,
        again_environment={"LD_PRELOAD": None},
        prepare=_clock,
        needs=(command("gcc"),),
    ),
    Row(
        name="a clock that is right, then 12 years slow",
        again_environment=_WRONG,
        prepare=_clock,
        needs=(command("gcc"),),
    ),
]
