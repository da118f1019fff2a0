"""vLLM's own judgement of its arguments, inside the image, while another generation serves."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Generator
from dataclasses import dataclass

from pyinfra.api.command import StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host

from vllm_cluster.facts.generations import TOOL
from vllm_cluster.operations.generations import seen
from vllm_cluster.operations.progress import lasting
from vllm_cluster.plan import generations
from vllm_cluster.plan.model import Container

_LIMIT_S = 900
_NAME = "vllm-cluster-check"
_READS = "vLLM in the image reads its arguments and the model"
# Through the parser, the checks of `vllm serve` and the making of the engine's configuration,
# which reads the model; it ends where processes would start (vllm/entrypoints/cli/serve.py,
# vllm/engine/arg_utils.py, 0.26 to 0.33).
PROGRAM = """
import contextlib
import io
import sys

def refuse(words):
    sys.stdout.flush()
    print("refused: " + words, file=sys.stderr)
    sys.exit(1)

said = io.StringIO()
arguments = sys.argv[1:]
sys.argv = ["vllm", "serve"]
if "--distributed-executor-backend=ray" in arguments:
    try:
        import ray
    except ImportError as error:
        refuse(f"the image has no usable Ray: {error}")
try:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser
except Exception as error:
    refuse(f"the image has no usable vLLM: {type(error).__name__}: {error}")
try:
    parser = FlexibleArgumentParser(description="vLLM CLI")
    command = ServeSubcommand()
    command.subparser_init(parser.add_subparsers(required=False, dest="subparser"))
    with contextlib.redirect_stderr(said):
        args = parser.parse_args(["serve", *arguments])
    command.validate(args)
    args.model = getattr(args, "model_tag", None) or args.model
    context = UsageContext.OPENAI_API_SERVER
    AsyncEngineArgs.from_cli_args(args).create_engine_config(usage_context=context)
except SystemExit as end:
    if end.code:
        words = said.getvalue().strip() or "no words"
        print(words, file=sys.stderr)
        refuse("vLLM does not take its arguments: " + words.splitlines()[-1])
except Exception as error:
    # pydantic's words go on to the whole input.
    refuse(f"vLLM refuses: {type(error).__name__}: {' '.join(str(error).split())[:400]}")
print("vLLM takes its arguments")
"""
# What a check must not share with the containers that serve.
_OWN = (
    "--rm", "--name=", "--network=", "--pid=", "--ipc=", "--restart=", "--log-driver=", "--label=",
    "--stop-timeout=", "--entrypoint=", "--env-file=/etc/", "--env=RAY_ADDRESS=",
)  # fmt: skip


@dataclass(frozen=True)
class Check:
    """`container` as vLLM is to be started from, `environment` the file of this generation."""

    identity: str
    container: Container
    environment: str
    secrets: str


@operation()
def accepted(check: Callable[[], Check]) -> Generator[StringCommand, None, None]:
    """Let vLLM in the new image judge its arguments and the model on this host."""
    kept, asked = seen(host.state), check()
    mine = kept.get(host.name)
    if not generations.switches(kept, asked.identity):
        host.noop("no other generation serves")
        return
    if mine is not None and asked.identity in mine.checked:
        host.noop("vLLM took these arguments before")
        return
    host.log(_READS)
    yield StringCommand(f"docker rm --force {_NAME} >/dev/null 2>&1; true")
    with lasting(_READS):
        yield StringCommand(
            f"timeout {_LIMIT_S} {shlex.join(_command(asked))} && {TOOL} checked {asked.identity}",
            _stdin=PROGRAM,
        )


def _command(check: Check) -> list[str]:
    kept = [
        option
        for option in check.container.options
        if not option.startswith(_OWN) and f"target={check.secrets}" not in option
    ]
    # Its own words, not those of a library that greets.
    quiet = ["--env=VLLM_LOGGING_LEVEL=ERROR", f"--env-file={check.environment}"]
    words = check.container.command
    return [
        "docker", "run", "--rm", "--interactive", f"--name={_NAME}", "--network=none", *kept,
        *quiet, "--entrypoint=python3", check.container.image, "-", *words[1:],
    ]  # fmt: skip
