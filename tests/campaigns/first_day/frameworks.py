"""Rows about what programs run in: test runners, servers, notebooks, trainers, launchers."""

from __future__ import annotations

from .environment import Site
from .row import WITNESS, Row
from .verdict import Expected

__all__ = ["ROWS"]

_TESTS = (
    WITNESS
    + """
import pytest, torch


@pytest.mark.parametrize("times", [2, 3, 4, 5])
def test_work(times):
    def work(x):
        return (x.sin() * times + 1).sum(dim=-1)
    x = torch.arange(24.0).reshape(4, 6)
    witness.check(torch.compile(work, backend="fxpool")(x), work(x))
"""
)

_APPLICATION = (
    WITNESS
    + """
import torch

model = torch.nn.Linear(6, 3)
compiled = torch.compile(model, backend="fxpool")
x = torch.arange(24.0).reshape(4, 6)
with torch.no_grad():
    witness.check(compiled(x), model(x))  # in the parent of the workers: --preload


def application(environment, start_response):
    with torch.no_grad():
        x = torch.ones(2, 6)
        witness.check(torch.compile(lambda x: model(x).sin(), backend="fxpool")(x), model(x).sin())
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"ok"]
"""
)

# Asks until both workers have answered; each has its own pid.
_CLIENT = """
import pathlib, socket, subprocess, sys, time

listener = socket.socket()
listener.bind(("127.0.0.1", 0))
port = listener.getsockname()[1]
listener.close()
server = subprocess.Popen([sys.executable, "-m", "gunicorn", "--preload", "-w", "2", "-b", f"127.0.0.1:{port}",
                           "--timeout", "110", "--log-level", "error", "application:application"])
status, end = 1, time.monotonic() + 110
try:
    answered = 0
    while time.monotonic() < end and server.poll() is None and answered < 2:
        try:
            with socket.create_connection(("127.0.0.1", port), 100) as connection:
                connection.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
                answer = b""
                while part := connection.recv(4096):
                    answer += part
        except ConnectionRefusedError:
            time.sleep(0.1)
            continue
        if not answer.endswith(b"ok"):
            sys.exit(f"answered {answer!r}")
        answered += 1
    status = answered != 2
finally:
    server.terminate()
    server.wait()
sys.exit(status)
"""

_TRAINER = (
    WITNESS
    + """
import torch
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 1)

    def forward(self, x, labels=None):
        y = self.linear(x).squeeze(-1).sin()
        return {"loss": ((y - labels) ** 2).mean(), "logits": y}


def data():
    torch.manual_seed(1)
    return [{"x": torch.randn(6), "labels": torch.randn(())} for _ in range(8)]


def trained(**arguments):
    torch.manual_seed(0)
    model = Model()
    PREPARE
    Trainer(
        model=model,
        args=TrainingArguments(output_dir="out", per_device_train_batch_size=4, max_steps=2, report_to=[],
                               save_strategy="no", disable_tqdm=True, use_cpu=True, seed=3, **arguments),
        train_dataset=data(),
    ).train()
    return [parameter.detach().clone() for parameter in model.parameters()]


ours = trained(ARGUMENTS)
compiling = False
witness.check(ours, trained())
"""
)

_NOTEBOOK = """
import nbformat, sys
from nbclient import NotebookClient

cells = [nbformat.v4.new_code_cell(text) for text in open("main.py").read().split("# cell\\n")]
NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=110, kernel_name="python3").execute()
"""
_CELLS = """WITNESS
import torch
# cell
def work(x):
    return (x.sin() * 2 + 1).sum(dim=-1)
compiled = torch.compile(work, backend="fxpool")
# cell
x = torch.arange(24.0).reshape(4, 6)
witness.check(compiled(x), work(x))
"""
_KERNEL = '{"argv": ["{python}", "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "here", "language": "python"}'  # noqa: E501

_RANK = (
    WITNESS
    + """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Model(torch.nn.Module):  # of one's own: Dynamo leaves torch's modules alone where nothing calls them
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(x).sin()


dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model()
parallel = DistributedDataParallel(model)
compiled = torch.compile(parallel, backend="fxpool")
x = torch.arange(24.0).reshape(4, 6) / 24 + dist.get_rank()
compiled(x).sin().sum().backward()
ours = [parameter.grad.clone() for parameter in model.parameters()]
parallel.zero_grad()
parallel(x).sin().sum().backward()
witness.check(ours, [parameter.grad for parameter in model.parameters()])
dist.destroy_process_group()
"""
)


# Uvicorn's own way to several processes; each compiles when it is asked first.
_ASGI = (
    WITNESS
    + """
import torch

model = torch.nn.Linear(6, 3)
torch.nn.init.constant_(model.weight, 0.5)
torch.nn.init.constant_(model.bias, 0.25)
compiled = torch.compile(model, backend="fxpool")


async def application(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    with torch.no_grad():
        x = torch.ones(2, 6)
        witness.check(compiled(x), model(x))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    await send({"type": "http.response.body", "body": b"ok"})
"""
)
_UVICORN = _CLIENT.replace(
    """"gunicorn", "--preload", "-w", "2", "-b", f"127.0.0.1:{port}",
                           "--timeout", "110", "--log-level", "error", "application:application"])""",
    """"uvicorn", "--workers", "2", "--port", str(port), "--log-level", "error",
                           "application:application"])""",
)

_LIGHTNING = (
    WITNESS
    + """
import lightning, torch


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 1)

    def forward(self, x):
        return self.linear(x).squeeze(-1).sin()

    def training_step(self, batch, number):
        x, y = batch
        return ((self(x) - y) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trained(compiling):
    lightning.seed_everything(0, verbose=False)
    module = Module()
    data = [(torch.randn(4, 6), torch.randn(4)) for _ in range(3)]
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False, barebones=False)
    loader = torch.utils.data.DataLoader(data, batch_size=None)
    trainer.fit(torch.compile(module, backend="fxpool") if compiling else module, loader)
    return [parameter.detach().clone() for parameter in module.parameters()]


witness.check(trained(True), trained(False))
"""
)


def _trainer(prepare: str, arguments: str = "", head: str = "") -> str:
    return head + _TRAINER.replace("PREPARE", prepare).replace("ARGUMENTS", arguments)


def _kernel(site: Site) -> None:
    site.write(site.home / "kernels" / "kernels" / "python3" / "kernel.json", _KERNEL)


ROWS = [
    Row(
        name="pytest",
        files={"test_it.py": _TESTS},
        arguments=("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"),
    ),
    Row(
        name="pytest-xdist",
        files={"test_it.py": _TESTS},
        arguments=("-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "test_it.py"),
        packages=("xdist", "execnet"),
        expected=Expected(processes=2, again_processes=2),
    ),
    Row(
        name="gunicorn --preload",
        program=_CLIENT,
        files={"application.py": _APPLICATION},
        packages=("gunicorn",),
        # The parent, and one worker at least: which of them answers is the kernel's choice.
        expected=Expected(processes=2, again_processes=2),
    ),
    Row(
        name="Trainer, model.compile(backend)",
        program=_trainer('model.compile(backend="fxpool") if compiling else None', head="compiling = True\n"),
        packages=("accelerate",),
    ),
    Row(
        name="Trainer, install() and torch_compile",
        program=_trainer("", "torch_compile=True", head="import fxpool\nfxpool.install()\ncompiling = True\n"),
        environment={"TORCHINDUCTOR_FX_COMPILE_MODE": "subprocess"},
        packages=("accelerate",),
        expected=Expected(cache=False),
    ),
    Row(name="Lightning", program=_LIGHTNING, packages=("lightning",)),
    Row(
        name="uvicorn, two workers",
        program=_UVICORN,
        files={"application.py": _ASGI},
        packages=("uvicorn",),
        # The kernel chooses which worker answers.
    ),
    Row(
        name="Jupyter kernel",
        program=_CELLS,
        files={"notebook.py": _NOTEBOOK},
        arguments=("notebook.py",),
        environment={"JUPYTER_PATH": "{home}/kernels", "JUPYTER_PLATFORM_DIRS": "1"},
        prepare=_kernel,
        packages=("nbclient", "nbformat", "ipykernel"),
    ),
    Row(name="IPython", arguments=("-m", "IPython", "--quick", "--colors=NoColor", "{program}"), packages=("IPython",)),
    Row(
        name="torchrun, two gloo ranks, DDP",
        program=_RANK,
        arguments=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "main.py"),
        environment={"OMP_NUM_THREADS": "1"},
        expected=Expected(processes=2, again_processes=2),
    ),
]
