"""What the real vLLM says of whole requests, up to the point where processes would start.

Reads {"models": {name: config.json}, "requests": [{"model", "args", "environment"}]} on standard
input; writes a list of null or the error. Each request goes through the released `vllm serve`:
its parser, its own checks, and the making of the engine's configuration.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def apart(verdict: Callable[[dict[str, Any]], str | None], request: dict[str, Any]) -> Any:
    """Judge in a child: vLLM's default configurations are shared, and some requests change them."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiver)
        with os.fdopen(sender, "w") as pipe:
            json.dump(verdict(request), pipe)
        os._exit(0)
    os.close(sender)
    with os.fdopen(receiver) as pipe:
        answer = json.load(pipe)
    os.waitpid(child, 0)
    return answer


def main() -> None:
    """Answer."""
    asked = json.load(sys.stdin)
    out = sys.stdout
    sys.stdout = sys.stderr
    sys.argv = ["vllm", "serve"]
    from vllm import AsyncEngineArgs  # type: ignore  # noqa: PLC0415
    from vllm.entrypoints.cli import serve  # type: ignore  # noqa: PLC0415
    from vllm.model_executor.models import registry  # type: ignore  # noqa: PLC0415
    from vllm.usage.usage_lib import UsageContext  # type: ignore  # noqa: PLC0415
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore  # noqa: PLC0415

    def configure(args: Any, *_rest: Any) -> None:
        engine = AsyncEngineArgs.from_cli_args(args)
        context = UsageContext.OPENAI_API_SERVER
        engine.create_engine_config(usage_context=context, headless=args.headless)

    for name in ("run_headless", "run_multi_api_server", "run_server", "run_dp_supervisor"):
        setattr(serve, name, configure)
    serve.uvloop.run = lambda _done: None  # the coroutine is no longer one

    # vLLM looks at a model's class in another process, so as not to wake CUDA: there is none.
    registry._run_in_subprocess = lambda look: look()

    parser = FlexibleArgumentParser(description="vLLM CLI")
    commands = parser.add_subparsers(required=False, dest="subparser")
    command = serve.ServeSubcommand()
    command.subparser_init(commands)
    folder = Path(tempfile.mkdtemp())
    for name, config in asked["models"].items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))

    def verdict(request: dict[str, Any]) -> str | None:
        os.environ.update(request["environment"])
        try:
            line = [str(folder / request["model"]), "--skip-tokenizer-init", *request["args"]]
            args = parser.parse_args(["serve", *line])
            command.validate(args)
            command.cmd(args)
        except SystemExit as end:
            return f"exit {end.code}" if end.code else None
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    for name in asked["models"]:
        # Import what a model needs before the children do, each anew.
        verdict({"model": name, "args": [], "environment": {}})
    json.dump([apart(verdict, request) for request in asked["requests"]], out)


if __name__ == "__main__":
    main()
