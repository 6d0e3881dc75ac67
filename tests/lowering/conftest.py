"""Children of the test process that compile, on a host whose tool chain is known.

A package's tests lie in the folder of its name. Those of whole programs and of several packages lie in this one, with
the modules and children that tests share.

Finding out which vector instructions a host can use and precompiling one header takes 10 s and more
per cache directory; a session does it once, and every test's cache directory starts with a link to
the result. That is the state a second use of a host is in.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zoo
from harness.children import ChildError, Children
from harness.loader import Loader
from harness.places import learn_toolchain, link_toolchain, with_tests
from processes import HERE, OFFLINE, run_python
from programs import Programs
from session import session_directory

import fxpool

if TYPE_CHECKING:
    from beside_stock import BesideStock

# torch formats every graph for a trace as soon as anything could record it, pytest's capturing included.
logging.getLogger("torch.__trace").propagate = False


@pytest.fixture(scope="module", autouse=True)
def _pool_of_this_process() -> Iterator[None]:
    """What a module's tests compiled with in this process ends with it."""
    yield
    fxpool.close()


@pytest.fixture
def nothing_lowered_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that is lowered in this process is an error."""
    from torch._inductor.graph import GraphLowering

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("compiled in the user's process")

    monkeypatch.setattr(GraphLowering, "__init__", refuse)


@pytest.fixture
def beside_stock(shared_pool: Path, cache: Path) -> Iterator[BesideStock]:
    """Stock Inductor as the judge of what fxpool gives; a graph that is lowered in this process for fxpool fails."""
    from beside_stock import BesideStock

    judge = BesideStock()
    with judge.in_force():
        yield judge
    import torch

    torch._dynamo.reset()


@pytest.fixture
def own_background(nothing_lowered_here: None) -> Iterator[None]:
    """`fxpool.wait` knows this test's graphs only, which are over when it ends."""
    import torch

    from fxpool.lowering.background import compiles

    # What another test's graphs left is of no interest (a failure's traceback may hold them).
    compiles._background().reset()
    torch._dynamo.reset()
    yield
    fxpool.wait(60)
    torch._dynamo.reset()


@pytest.fixture(scope="session")
def known_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with fxpool's facts of the tool chain (``c/toolchain``), and a place for stock Inductor's (``i``)."""
    with session_directory(tmp_path_factory, "h", _know_the_host) as (root, _):
        return root


def _know_the_host(root: Path) -> None:
    for name in "cirt":
        (root / name).mkdir(mode=0o700)
    settings = {
        "FXPOOL_CACHE_DIR": str(root / "c"),
        "FXPOOL_RUNTIME_DIR": str(root / "r"),
        "FXPOOL_IDLE_TIMEOUT": "1",  # set for the session, before a test's settings are in force
        "TORCHINDUCTOR_CACHE_DIR": str(root / "i"),
        "TMPDIR": str(root / "t"),
    }
    learn_toolchain(Children(), {**os.environ, **settings})


@pytest.fixture
def cache(known_host: Path, tmp_path: Path) -> Path:
    """This test's cache directory: no entries, tool chain known."""
    directory = tmp_path / "c"
    link_toolchain(directory, known_host / "c" / "toolchain")
    return directory


def _forks(module: str) -> Loader:
    return Loader(module, {**os.environ, "PYTHONPATH": with_tests(str(HERE)), **OFFLINE})


@pytest.fixture(scope="session")
def loader() -> Iterator[Loader]:
    """Forks for runs of child.py: it has imported torch and the models, and nothing of a compiler."""
    with _forks("child") as loader:
        yield loader


@pytest.fixture
def child(cache: Path, loader: Loader) -> Callable[..., dict[str, Any]]:
    """Run a model in a process of its own with this test's cache; gives the report of child.py.

    A fork of `loader`, which spares five seconds of imports; `fresh` makes it an interpreter of its own.
    """

    def run(model: str, mode: str | None = "subprocess", *, fresh: bool = False, **asked: Any) -> dict[str, Any]:
        asked = {"model": model, "backend": "fxpool", "mode": mode, "what": ["infer", "train"], **asked}
        if fresh:
            return json.loads(run_python([str(HERE / "child.py"), json.dumps(asked)]).strip().splitlines()[-1])
        return _forked(loader, asked, os.environ)

    return run


def _forked(loader: Loader, asked: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    try:
        return loader.run([json.dumps(asked)], environment, f"child.py {asked}", limit=280)
    except ChildError as error:
        pytest.fail(f"{error.message}:\n{error.output}")


class Inductor:
    """Stock Inductor's outputs for a model, computed once per session and set of arguments.

    `begin` has them computed beside what the test does next; calling it gives them.
    """

    def __init__(self, directory: Path, executor: ThreadPoolExecutor, loader: Loader) -> None:
        self._directory, self._executor, self._loader = directory, executor, loader
        self._outputs: dict[str, Future[Path]] = {}

    def begin(self, model: str, **asked: Any) -> Future[Path]:
        asked = {"model": model, "backend": "inductor", "what": ["infer", "train"], **asked}
        name = json.dumps(asked, sort_keys=True)
        if name not in self._outputs:
            path = self._directory / f"outputs-{os.getpid()}-{len(self._outputs)}.pt"
            # What belongs to the test that asked must not be in the way of those that come later.
            environment = {
                **os.environ,
                "TORCHINDUCTOR_CACHE_DIR": str(self._directory / "i"),
                "TMPDIR": str(self._directory / "t"),
            }

            def run() -> Path:
                _forked(self._loader, {**asked, "save": str(path)}, environment)
                return path

            self._outputs[name] = self._executor.submit(run)
        return self._outputs[name]

    def __call__(self, model: str, **asked: Any) -> dict[str, Any]:
        import torch

        return torch.load(self.begin(model, **asked).result())


@pytest.fixture(scope="session")
def inductor(known_host: Path) -> Iterator[Inductor]:
    with _forks("child") as loader, ThreadPoolExecutor(1, thread_name_prefix="stock") as executor:
        yield Inductor(known_host, executor, loader)


@pytest.fixture(scope="session", autouse=True)
def _stock_outputs_ahead(request: pytest.FixtureRequest) -> None:
    """Have stock Inductor's outputs computed beside the tests that come before the models'.

    Not with several test processes: each would compute them, and only one runs those tests.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    if any(item.path.name == "test_models.py" for item in request.session.items):
        inductor = request.getfixturevalue("inductor")
        for model in zoo.NAMES:
            inductor.begin(model, **zoo.asked(model))


@pytest.fixture(scope="session")
def program_loader() -> Iterator[Loader]:
    """Forks for runs of program_child.py: it has imported torch and Dynamo."""
    with _forks("program_child") as loader:
        yield loader


@pytest.fixture(scope="session")
def program_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The runtime directory of one server for all programs of a session: starting one takes five seconds."""
    with session_directory(tmp_path_factory, "g", lambda directory: directory.chmod(0o700)) as (directory, is_last):
        yield directory
        if is_last():
            run_python(["-m", "fxpool", "stop"], FXPOOL_RUNTIME_DIR=str(directory))


@pytest.fixture
def programs(cache: Path, tmp_path: Path, program_loader: Loader, program_server: Path) -> Programs:
    """Runs small programs in processes of their own, with this test's cache and one server for all of them."""
    settings = {"FXPOOL_RUNTIME_DIR": str(program_server), "FXPOOL_IDLE_TIMEOUT": "120"}
    return Programs(program_loader, tmp_path / "p", settings)
