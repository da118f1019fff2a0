"""A host as the placing reaches it: OpenSSH, the agent as root, JSON back."""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from vllm_cluster.control.remote import root_command, ssh_argv
from vllm_cluster.operations import owned
from vllm_cluster.plan import HostPlan, paths
from vllm_cluster.plan.weights import WeightsPlan
from vllm_cluster.spec import Cluster
from vllm_cluster.weights.build import agent_bytes, agent_version, put_script
from vllm_cluster.weights.seen import Seen, look_script, read_look

Result = TypeVar("Result")
QUICK_S = 60.0
# Exit statuses of the agent that come with an answer: done, and a copy that is not whole.
_ANSWERED = {0, 4}
_SSH_FAILED = 255


class HostError(Exception):
    """A host could not do what it was asked; `silent`: it could not even be asked."""

    def __init__(self, host: str, words: str, *, silent: bool = False) -> None:
        self.host, self.words, self.silent = host, words, silent
        super().__init__(words if words.startswith(f"{host}:") else f"{host}: {words}")


@dataclass(frozen=True)
class Remote:
    """One host of the cluster and the model that it shall have."""

    cluster: Cluster
    host: HostPlan
    weights: WeightsPlan

    @property
    def name(self) -> str:
        return self.host.name

    def argv(self, words: Sequence[str]) -> list[str]:
        """The command of this machine that runs `words` as root there."""
        line = root_command(self.cluster, shlex.join(words))
        return [*ssh_argv(self.cluster, self.host), line]

    def run(
        self, words: Sequence[str], stdin: bytes = b"", timeout_s: float = QUICK_S
    ) -> subprocess.CompletedProcess[bytes]:
        """Run it to its end. Raises HostError when the host does not answer."""
        try:
            done = subprocess.run(
                self.argv(words), input=stdin, capture_output=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise HostError(self.name, f"no answer within {timeout_s:.0f} s", silent=True) from None
        if done.returncode == _SSH_FAILED:
            words_ = done.stderr.decode(errors="replace").strip() or "ssh ended with 255"
            raise HostError(self.name, f"does not answer: {words_}", silent=True)
        return done

    def agent(self, *words: str, stdin: bytes = b"", timeout_s: float = QUICK_S) -> dict[str, Any]:
        """Ask the agent there. Raises HostError with the agent's own sentence."""
        done = self.run(self.agent_words(*words), stdin, timeout_s)
        value = _last_object(done.stdout)
        if done.returncode in _ANSWERED and value is not None:
            return value
        raise HostError(self.name, _sentence(value, done.stderr))

    def agent_words(self, *words: str) -> list[str]:
        return [*self.weights.agent(), "--json", *words]

    def lines(self, *words: str) -> Iterator[dict[str, Any]]:
        """What a long command of the agent says, an object a line as they come.

        Raises HostError when it ends without an answer, in its own words.
        """
        # To a file: a sentence for each of a thousand files would fill a pipe that nobody reads.
        with tempfile.TemporaryFile("w+", errors="replace") as errors:
            process = subprocess.Popen(
                self.argv(self.agent_words(*words)), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace",
            )  # fmt: skip
            assert process.stdout is not None  # noqa: S101
            last: dict[str, Any] | None = None
            try:
                for line in process.stdout:
                    with suppress(ValueError):
                        last = json.loads(line)
                        if last is not None and not _is_error(last):
                            yield last
                # It has said all, and has yet to end: terminated now, ssh would end with 255,
                # which is what it says of a host that does not answer.
                code = process.wait()
            finally:
                if process.poll() is None:  # nobody listens any more
                    process.terminate()
                    process.wait()
            errors.seek(0)
            told = errors.read()
        if code == _SSH_FAILED:
            raise HostError(self.name, f"does not answer: {told.strip()}", silent=True)
        if code not in _ANSWERED or last is None:
            raise HostError(self.name, _sentence(last, told.encode()))

    def look(self) -> Seen:
        """See the model there; bring the agent first where it is missing or older."""
        seen = self._look()
        if seen.agent != agent_version():
            self._bring_agent()
            seen = self._look()
            if seen.problem:
                raise HostError(self.name, seen.problem)
        return seen

    def _look(self) -> Seen:
        done = self.run(["sh", "-c", look_script_of(self.weights)])
        return read_look(done.stdout.decode(errors="replace").splitlines())

    def record(self) -> None:
        """Note what placing is about to make, or finds, for `down`: the root may be a disk."""
        names = (".store", ".staging", ".jobs", ".pins", self.weights.model.replace("/", "--"))
        places = [shlex.quote(f"{self.weights.root}/{name}") for name in names]
        lines = [
            f"if [ -e {place} ] || [ -L {place} ]; then b=there; else b=absent; fi; "
            f"own weights {place} $b || exit 1"
            for place in places
        ]
        done = self.run(["sh", "-c", "\n".join([owned.SHELL, *lines])])
        if done.returncode:
            raise HostError(self.name, done.stderr.decode(errors="replace").strip())

    def _bring_agent(self) -> None:
        done = self.run(["sh", "-c", put_script(paths.AGENT)], agent_bytes())
        if done.returncode:
            words = done.stderr.decode(errors="replace").strip()
            raise HostError(self.name, f"{paths.AGENT}: {words}")


def look_script_of(weights: WeightsPlan) -> str:
    """The look at this plan's model, as pyinfra's fact and the placing both ask it."""
    words = ("--model", weights.model, "--revision", weights.revision, *weights.aside())
    return look_script(paths.AGENT, weights.agent(), words)


def on_all(
    remotes: Sequence[Remote], work: Callable[[Remote], Result]
) -> tuple[dict[str, Result], dict[str, HostError]]:
    """Do it on all hosts at once: results and failures by host."""

    def one(remote: Remote) -> Result | HostError:
        try:
            return work(remote)
        except HostError as error:
            return error

    with ThreadPoolExecutor(max(1, len(remotes))) as pool:
        answers = dict(zip((r.name for r in remotes), pool.map(one, remotes), strict=True))
    done = {name: a for name, a in answers.items() if not isinstance(a, HostError)}
    return done, {name: a for name, a in answers.items() if isinstance(a, HostError)}


def _last_object(out: bytes) -> dict[str, Any] | None:
    for line in reversed(out.decode(errors="replace").splitlines()):
        with suppress(ValueError):
            value = json.loads(line)
            return value if isinstance(value, dict) else None
    return None


def _is_error(value: Mapping[str, Any]) -> bool:
    """Whether the agent says why it failed; a job's state has an error of its own."""
    return isinstance(value.get("error"), dict) and "phase" not in value


def _sentence(value: Mapping[str, Any] | None, err: bytes) -> str:
    if value is not None and _is_error(value):
        return str(value["error"]["message"])
    lines = [line for line in err.decode(errors="replace").splitlines() if line.strip()]
    if lines and "python3" in lines[-1] and "not found" in lines[-1]:
        return "has no python3; deploys/cluster.py installs it, or `apt-get install python3`"
    return lines[-1].strip() if lines else "the agent said nothing"
