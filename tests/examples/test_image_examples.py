"""The Dockerfiles in examples/images: built and run as Docker would, as far as namespaces and an overlay go without it.

`RUN` lines of fxpool are executed in an overlay above this machine's files, which stand for the base image. The command
then runs as the image's user in a second overlay above that layer, in its own process namespace.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "images"
NAMES = sorted(path.name.removesuffix(".Dockerfile") for path in FOLDER.glob("*.Dockerfile"))
BIN = Path(sys.executable).parent
NAMESPACES = ("unshare", "--mount", "--propagation", "private")

WARM_UP = """
import torch

@torch.compile(backend="fxpool")
def f(x):
    return (x * 3).sin() + 4

assert torch.allclose(f(torch.ones(8)), (torch.ones(8) * 3).sin() + 4)
"""
SERVE = (
    WARM_UP
    + """
import json, os, fxpool
first = fxpool.stats()
torch.compile(lambda x: x.cos() - 2, backend="fxpool")(torch.ones(8))  # not in the image
second = fxpool.stats()
read_only = False
try:
    open("/app/new", "w")
except OSError as error:
    read_only = error.errno == 30
print(json.dumps({
    "user": [os.getuid(), os.getgid(), os.getgroups(), os.getpid()], "read_only": read_only,
    "hits": first["hits"], "compiled": second["compiles"], "written": second["entries_written"],
    "off": [second["switched_off"], second["bypasses"], second["fallbacks"]],
    "ended": len(fxpool.quiesce()["servers_ended"]),
}))
"""
)


@dataclass
class Image:
    """A Dockerfile's instructions. Raises ValueError for those that these examples do not need."""

    runs: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    copied: list[str] = field(default_factory=list)
    directory: str = "/"
    user: str = "0"
    command: list[str] = field(default_factory=list)
    base: str = ""

    @classmethod
    def read(cls, text: str) -> Image:
        image = cls()
        for line in re.sub(r"\\\n", "", text).splitlines():
            word, _, rest = line.strip().partition(" ")
            if not word or word.startswith("#"):
                continue
            if word != "FROM" and not image.base:
                raise ValueError(f"{word} before FROM")
            if word == "FROM":
                image.base = rest
            elif word == "RUN":
                image.runs.append(rest)
            elif word == "ENV":
                image.environment |= dict(pair.split("=", 1) for pair in shlex.split(rest))
            elif word == "COPY":
                *image.copied, target = rest.split()
                if target != "./":
                    raise ValueError(f"COPY to {target}")
            elif word == "WORKDIR":
                image.directory = rest
            elif word == "USER":
                image.user = rest
            elif word == "CMD":
                image.command = json.loads(rest)
            else:
                raise ValueError(f"unknown instruction {word}")
        return image


def _image(name: str) -> Image:
    return Image.read((FOLDER / f"{name}.Dockerfile").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_instructions(name: str) -> None:
    image = _image(name)
    assert image.base and image.command == ["python", "serve.py"] and image.copied == ["warm_up.py", "serve.py"]
    install, warm = image.runs
    assert install == "pip install --no-cache-dir fxpool"
    # The line of docs/images.md, which its own test runs.
    assert f"RUN {warm}\nENV FXPOOL_CACHE_BASE=/opt/fxpool\n" in (ROOT / "docs" / "images.md").read_text()
    assert image.environment["FXPOOL_CACHE_BASE"] == "/opt/fxpool"


def test_the_page_lists_the_files() -> None:
    page = (ROOT / "docs" / "ci.md").read_text()
    assert set(re.findall(r"examples/images/(\w+)\.Dockerfile", page)) == set(NAMES)


SCRIPT = """
set -e
cd {work}
mount -t tmpfs -o mode=0755 tmpfs {work}
cd {work}
mkdir --mode 0755 layer upper work1 work2 image container

# The build
mount -t overlay overlay -o lowerdir=/,upperdir=layer,workdir=work1 image
mount --rbind /dev image/dev
chmod a+rx {parents}
mkdir -p image{directory}
cp {context} image{directory}
{runs}
umount -R image

# The container
mount -t overlay overlay -o lowerdir=layer:/,upperdir=upper,workdir=work2 container
{mounts}
mount --rbind /dev container/dev
{command}
"""


def _executed(image: Image, tmp_path: Path, *, read_only: bool) -> dict[str, Any]:
    """Build an image and run its command; return the object that the program prints."""
    if subprocess.run([*NAMESPACES, "--pid", "--fork", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces may be made here (root may)")
    work = tmp_path / "w"
    for path in (work, tmp_path / "context"):
        path.mkdir()
    for name, text in (("warm_up.py", WARM_UP), ("serve.py", SERVE)):
        (tmp_path / "context" / name).write_text(text)
    # Directories that this machine's user may have closed to others, as no image would have them.
    parents = {parent for top in (sys.base_prefix, sys.prefix, ROOT) for parent in (Path(top), *Path(top).parents)}
    mounts = ""
    if read_only:
        # A checkout below /tmp would be hidden by the container's.
        mounts = (
            f"mkdir -p container{ROOT}\nmount -o remount,ro container\nmount -t tmpfs -o mode=1777 tmpfs container/tmp"
        )
        if ROOT.is_relative_to("/tmp"):
            mounts += f"\nmkdir -p container{ROOT}\nmount --bind {ROOT} container{ROOT}"
    programs = {"PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin"}
    script = SCRIPT.format(
        work=work,
        parents=" ".join(shlex.quote(f"image{parent}") for parent in parents if parent != Path("/")),
        directory=image.directory,
        context=" ".join(str(tmp_path / "context" / name) for name in image.copied),
        runs="\n".join(
            _started("image", image.directory, "0", programs, ["bash", "-ec", run])
            for run in image.runs
            if not run.startswith("pip install ")
        ),
        mounts=mounts,
        command=_started("container", image.directory, image.user, programs | image.environment, image.command),
    )
    done = subprocess.run([*NAMESPACES, "bash", "-c", script], capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _started(root: str, directory: str, user: str, environment: dict[str, str], command: list[str]) -> str:
    """Return a shell command that runs another as the first process of a namespace, as `user` in the group 0."""
    home = "/root" if user == "0" else "/"  # as Docker sets it for a user without an entry in /etc/passwd
    variables = [f"{name}={value}" for name, value in {**environment, "HOME": home}.items()]
    inner = shlex.join(
        ["setpriv", "--reuid", user, "--regid", "0", "--clear-groups", "env", "-i", *variables, *command]
    )
    first = f"mount -t proc proc /proc; cd {shlex.quote(directory)}; exec {inner}"
    return shlex.join(["unshare", "--mount", "--pid", "--fork", "--kill-child", "chroot", root, "bash", "-ec", first])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(300)
def test_an_image_serves_its_graphs_to_its_user(name: str, tmp_path: Path) -> None:
    image = _image(name)
    result = _executed(image, tmp_path, read_only=name == "read_only")
    assert result["user"] == [int(image.user), 0, [], 1]
    assert result["read_only"] == (name == "read_only")
    assert result["hits"] == 1, result
    assert result["compiled"] == {"worker": 1, "in_process": 0} and result["written"] == 1, result
    assert result["off"] == [{}, {}, {}], result
    assert result["ended"] == 1, "the server is a child of the container's first process"
