"""Pipelines and clusters: their files fit the schemas, and their scripts are executed here, in order."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fxpool.codecache.bundle.authentication import Keyring
from fxpool.codecache.store.entry import Entry, Metadata
from fxpool.codecache.store.store import LocalStore
from fxpool.commands.main import main as cli

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ACTION = ROOT / ".github" / "actions" / "cache" / "action.yml"
BIN = Path(sys.executable).parent

PROGRAM = """
import torch
import fxpool

@torch.compile(backend="fxpool")
def f(x):
    return (x * 3).sin() + {number}

assert torch.allclose(f(torch.ones(8)), (torch.ones(8) * 3).sin() + {number})
fxpool.wait()
"""


def _run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True, text=True, check=False, timeout=250, env={**os.environ, **environment},
    )  # fmt: skip


def _checked(*command: str, **environment: str) -> str:
    done = _run(*command, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ("vendor.github-actions", ACTION),
        ("vendor.github-workflows", EXAMPLES / "ci" / "github.yml"),
        ("vendor.gitlab-ci", EXAMPLES / "ci" / "gitlab.yml"),
    ],
    ids=["action", "workflow", "GitLab"],
)
def test_a_pipeline_fits_its_schema(schema: str, path: Path) -> None:
    _checked(str(BIN / "check-jsonschema"), "--builtin-schema", schema, str(path))


@pytest.mark.parametrize(("name", "resources"), [("volume.yaml", 2), ("redis.yaml", 3)])
def test_manifests_fit_their_schemas(name: str, resources: int) -> None:
    said = _checked(str(BIN / "kubernetes-validate"), "--strict", str(EXAMPLES / "kubernetes" / name))
    assert len(re.findall("passed for resource", said)) == resources


def test_the_workflow_uses_the_action_of_this_repository() -> None:
    (job,) = yaml.safe_load((EXAMPLES / "ci" / "github.yml").read_text())["jobs"].values()
    used = [step["uses"] for step in job["steps"] if "fxpool" in step.get("uses", "")]
    (path,) = {re.fullmatch(r"fxpool/fxpool/(.+)@v[\d.]+", name)[1] for name in used}  # type: ignore[index]
    assert (ROOT / path / "action.yml") == ACTION


def test_the_page_begins_with_the_step_and_names_each_input() -> None:
    page = (ROOT / "docs" / "ci.md").read_text()
    (step,) = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    inputs = yaml.safe_load(ACTION.read_text())["inputs"]
    assert set(step["with"]) == {name for name, row in inputs.items() if row.get("required")}
    for name, row in inputs.items():
        default = row.get("default", "")
        assert f"| `{name}` | " + (f"`{default}` |" if default and "$" not in default else "") in page, name


# ------------------------------------------------------------------------------------------------ what GitHub does


class Runner:
    """Executes the steps of an action as GitHub's runner does, in order, on one machine.

    Caches are archives in `store`, made and read by tar with absolute paths as those of actions/cache are.
    """

    def __init__(self, store: Path, home: Path, **inputs: str) -> None:
        self.store, self.home = store, home
        for directory in (store, home):
            directory.mkdir(exist_ok=True)
        self.action: dict[str, Any] = yaml.safe_load(ACTION.read_text())
        defaults = {name: str(row.get("default", "")) for name, row in self.action["inputs"].items()}
        self.inputs = {**defaults, "key": "tests", "python": sys.executable, **inputs}
        self.outputs: dict[str, dict[str, str]] = {}
        self.summary = home / "summary.md"
        self.restored = self.saved = ""
        self.said = ""

    def run(self) -> int:
        """Return the status of the job, which the first failing step decides unless it may fail."""
        status = 0
        for step in self.action["runs"]["steps"]:
            condition = step.get("if", "")
            if (status and "always()" not in condition) or not self._holds(condition):
                continue
            if "uses" in step:
                self._call(step["uses"], {name: self._value(value) for name, value in step["with"].items()})
            else:
                failed = self._script(step)
                status = status or (0 if step.get("continue-on-error") else failed)
        return status

    def _holds(self, condition: str) -> bool:
        for part in filter(None, condition.replace("always()", "").split("&&")):
            match = re.fullmatch(r" *steps\.(\w+)\.outputs\.([\w-]+) (!= ''|> 0) *", part)
            if match is not None:
                value = self.outputs.get(match[1], {}).get(match[2], "")
                if not (value if match[3] == "!= ''" else value.isdigit() and int(value) > 0):
                    return False
            else:
                assert not part.strip(), f"unknown condition {part!r}"
        return True

    def _call(self, name: str, inputs: dict[str, str]) -> None:
        archives = sorted(self.store.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        if name.startswith("actions/cache/restore@"):
            for prefix in [inputs["key"], *inputs["restore-keys"].split()]:
                for archive in archives:
                    if not self.restored and archive.name.startswith(prefix):
                        _checked("tar", "-xzPf", str(archive))
                        self.restored = archive.name
        else:
            assert name.startswith("actions/cache/save@")
            self.saved = inputs["key"]
            _checked("tar", "-czPf", str(self.store / inputs["key"]), inputs["path"])

    def _script(self, step: dict[str, Any]) -> int:
        written = self.home / "outputs.txt"
        written.write_text("")
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=250,
            cwd=self.home / self._value(step.get("working-directory", ".")),
            env={
                **{name: value for name, value in os.environ.items() if name != "FXPOOL_CACHE_DIR"},
                **{name: self._value(value) for name, value in step.get("env", {}).items()},
                "HOME": str(self.home), "GITHUB_OUTPUT": str(written), "GITHUB_STEP_SUMMARY": str(self.summary),
            },
        )  # fmt: skip
        self.said += done.stdout
        self.outputs[step.get("id", "")] = dict(line.split("=", 1) for line in written.read_text().splitlines())
        return done.returncode

    def _value(self, text: str) -> str:
        def replaced(match: re.Match[str]) -> str:
            source, *names = match[1].split(".")
            if source == "inputs":
                return self.inputs[names[0]]
            if source == "github":
                return {"run_id": str(len(list(self.store.iterdir()))), "run_attempt": "1"}[names[0]]
            return self.outputs.get(names[0], {}).get(names[-1], "")

        return re.sub(r"\$\{\{ *([\w.-]+) *\}\}", replaced, text)


def _command(tmp_path: Path, number: int, more: str = "") -> str:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(number=number) + more)
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(program))}"


@pytest.mark.timeout(300)
def test_the_action_compiles_once_and_says_so(tmp_path: Path) -> None:
    command, home = _command(tmp_path, 1), tmp_path / "h"
    first = Runner(tmp_path / "store", home, run=f"true\n{command}")
    assert first.run() == 0, first.said
    summary = first.outputs["summary"]
    assert (summary["hits"], summary["compiles"], summary["written"]) == ("0", "1", "1"), first.said
    assert first.saved and not first.restored
    family = r"fxpool-python3\.\d+-torch[\w.+]+-fxpool[\w.+]+-linux-\w+-tests-"
    assert re.fullmatch(family + r"[0-9a-f]{12}-0-1", first.saved)
    assert first.outputs["name"]["directory"] == str(home / ".cache" / "fxpool")

    # The next machine has nothing but the archive; in a container its files belong to another user.
    shutil.rmtree(home)
    second = Runner(first.store, home, run=command)
    if os.geteuid() == 0:
        subprocess.run(["tar", "-xzPf", str(first.store / first.saved)], check=True)
        subprocess.run(["chown", "-R", "12345:12345", str(home / ".cache" / "fxpool")], check=True)
        subprocess.run(["chmod", "-R", "a+rwX", str(home / ".cache" / "fxpool")], check=True)
        subprocess.run(["tar", "-czPf", str(first.store / first.saved), str(home / ".cache" / "fxpool")], check=True)
        shutil.rmtree(home / ".cache")
    assert second.run() == 0, second.said
    summary = second.outputs["summary"]
    assert second.restored == first.saved
    assert (summary["hits"], summary["compiles"], summary["written"]) == ("1", "0", "0"), second.said
    assert float(summary["seconds-saved"]) > 0
    assert not second.saved, "nothing is new"
    (line,) = second.summary.read_text().splitlines()
    assert re.fullmatch(r"fxpool: 1 hit, 0 misses, 0 compiles, [\d.]+s saved", line) and line in second.said
    assert not list((tmp_path / "r").glob("host-*")), "no server writes to the cache while it is saved"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_command_that_fails_keeps_its_graphs_and_its_status(tmp_path: Path) -> None:
    runner = Runner(tmp_path / "store", tmp_path / "h", run=_command(tmp_path, 2, "\nraise SystemExit(7)\n"))
    assert runner.run() == 7
    assert runner.outputs["summary"]["compiles"] == "1" and runner.saved


def test_the_action_runs_the_command_if_there_is_no_fxpool(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no module named fxpool >&2\nexit 1\n")
    python.chmod(0o755)
    (tmp_path / "h" / "below").mkdir(parents=True)
    ran = "pwd > ran; echo ${FXPOOL_CACHE_DIR-unset} >> ran"
    runner = Runner(
        tmp_path / "store", tmp_path / "h", **{"run": ran, "python": str(python), "working-directory": "below"}
    )
    assert runner.run() == 0, runner.said
    below = tmp_path / "h" / "below"
    assert (below / "ran").read_text().split() == [str(below), "unset"]
    assert not runner.restored and not runner.saved
    runner.inputs["run"] = "exit 9"
    assert runner.run() == 9


def test_a_cache_of_another_processor_is_the_second_choice(tmp_path: Path) -> None:
    runner = Runner(tmp_path / "store", tmp_path / "h", run="true")
    assert runner.run() == 0 and not runner.restored
    prefix, family = runner.outputs["name"]["prefix"], runner.outputs["name"]["family"]
    assert prefix.startswith(family)
    empty = tmp_path / "empty"
    empty.mkdir()
    for number, name in enumerate([f"{prefix}7-1", f"{family}000000000000-8-1", "fxpool-of-another-torch"]):
        subprocess.run(["tar", "-czPf", str(runner.store / name), str(empty)], check=True)
        os.utime(runner.store / name, (number, number))
    again = Runner(runner.store, tmp_path / "h", run="true")
    assert again.run() == 0 and again.restored == f"{prefix}7-1", "the latest of this processor"
    (runner.store / f"{prefix}7-1").unlink()
    other = Runner(runner.store, tmp_path / "h", run="true")
    assert other.run() == 0 and other.restored == f"{family}000000000000-8-1"


# ------------------------------------------------------------------------------------------------ what GitLab does


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_gitlab_job_carries_a_bundle_from_one_machine_to_the_next(tmp_path: Path) -> None:
    jobs = yaml.safe_load((EXAMPLES / "ci" / "gitlab.yml").read_text())
    template = jobs[".fxpool"]
    project = tmp_path / "project"
    project.mkdir()
    project.chmod(0o777)  # as GitLab's runner leaves it in a container
    (project / "program.py").write_text(PROGRAM.format(number=3))
    script = "\n".join([*template["before_script"], "python program.py"])
    said = []
    for machine in ("a", "b"):
        home = tmp_path / machine
        home.mkdir()
        environment = {
            "HOME": str(home), "FXPOOL_CACHE_DIR": str(home / "cache"), **template["variables"],
            "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
        }  # fmt: skip
        for lines in (script, "\n".join(template["after_script"])):
            said.append(_checked("bash", "-ec", f"cd {shlex.quote(str(project))}; umask 0000; {lines}", **environment))
    assert "fxpool: 0 hits, 1 miss, 1 compile, 0s saved" in said[1]
    assert "1 entry" in said[2] and "fxpool: 1 hit, 0 misses, 0 compiles" in said[3]
    # A damaged bundle imports nothing, and the job goes on.
    (project / ".fxpool" / "cache.fxb").write_bytes(b"damaged")
    _checked("bash", "-ec", f"cd {shlex.quote(str(project))}; {template['before_script'][0]}", **environment)


# ------------------------------------------------------------------------------------------------ what Kubernetes does


def _pod(name: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((EXAMPLES / "kubernetes" / name).read_text())
    (pod,) = [one["spec"]["template"]["spec"] for one in documents if one["metadata"]["name"] == "serve"]
    return dict(pod)


def _initialized(pod: dict[str, Any], volumes: dict[str, Path]) -> dict[str, str]:
    """Run the commands of a pod's first containers; return the environment of the last, with this machine's paths."""

    def path(text: str, mounts: list[dict[str, str]]) -> str:
        places = {mount["mountPath"]: str(volumes[mount["name"]]) for mount in mounts}
        pattern = rf"(?<![\w/])({'|'.join(map(re.escape, places))})(?![\w])"
        return re.sub(pattern, lambda match: places[match[1]], text)

    for container in pod["initContainers"]:
        user = container.get("securityContext", {}).get("runAsUser", pod["securityContext"]["runAsUser"])
        command = [path(word, container["volumeMounts"]) for word in container["command"]]
        subprocess.run(
            command, check=True, user=user, group=user, extra_groups=[pod["securityContext"].get("fsGroup", user)]
        )
    (serve,) = pod["containers"]
    return {row["name"]: path(row["value"], serve["volumeMounts"]) for row in serve["env"]}


def _as_user(user: int, check: Callable[[], object]) -> str:
    """Return the text of an exception that `check` raises in a child of this user, or ""."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        said = ""
        try:
            os.setgroups([user])
            os.setgid(user)
            os.setuid(user)
            check()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


@pytest.fixture
def volume() -> Iterator[Callable[[int, int], Path]]:
    """Makes a volume that all users can reach, with a mode and a group."""
    if os.geteuid() != 0:
        pytest.skip("needs root, as the first containers of these pods do")
    with tempfile.TemporaryDirectory(dir="/tmp") as root:
        os.chmod(root, 0o755)

        def make(mode: int, group: int) -> Path:
            path = Path(tempfile.mkdtemp(dir=root))
            os.chown(path, 0, group)
            path.chmod(mode)
            return path

        yield make


@pytest.mark.parametrize(("mode", "group"), [(0o755, 0), (0o777, 0), (0o2775, 1000)])
def test_a_pod_may_use_its_volume(volume: Callable[[int, int], Path], mode: int, group: int) -> None:
    pod, cache = _pod("volume.yaml"), volume(mode, group)
    entry = Entry(key="ab" * 32, components=[], metadata=Metadata(label="g", created=1.0, compile_seconds=1.0))
    for _ in range(2):  # the pod starts again
        environment = _initialized(pod, {"cache": cache})
        assert environment["FXPOOL_CACHE_DIR"] == f"{cache}/fxpool"
        user = pod["securityContext"]["runAsUser"]
        publish = functools.partial(_publish, environment["FXPOOL_CACHE_DIR"], entry)
        assert _as_user(user, publish) == ""
    assert "UnsafeDirectoryError" in _as_user(user + 1, publish)


def _publish(root: str, entry: Entry) -> None:
    LocalStore(root).publish(entry, {"module": b"code"})


def test_a_pod_may_use_its_key(volume: Callable[[int, int], Path], tmp_path: Path) -> None:
    pod = _pod("redis.yaml")
    volumes = {"secret": volume(0o755, 0), "key": volume(0o2777, 1000)}
    cli(["cache", "key", str(tmp_path / "key")], standalone_mode=False)
    secret = volumes["secret"] / "key"
    secret.write_bytes((tmp_path / "key").read_bytes())
    secret.chmod(0o644)  # Kubernetes' default
    environment = _initialized(pod, volumes)
    user = pod["securityContext"]["runAsUser"]
    load = functools.partial(Keyring.load, environment["FXPOOL_REMOTE_KEY_FILE"])
    assert _as_user(user, load) == ""
    assert "ConfigurationError" in _as_user(user, functools.partial(Keyring.load, secret))
    redis = (EXAMPLES / "kubernetes" / "redis.yaml").read_text()
    assert f'value: "{environment["FXPOOL_REMOTE_CACHE"]}"' in redis and "name: fxpool-redis\n" in redis
