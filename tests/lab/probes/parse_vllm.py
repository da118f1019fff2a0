"""What the real `vllm serve` says of command lines, and which arguments it has.

Reads a JSON list of command lines (lists of words after `serve`) on standard input; writes
{"arguments": the table as scripts/flags_vllm.py makes it, "verdicts": [null or the error]}.
"""

import contextlib
import io
import json
import sys


def main() -> None:
    """Answer."""
    lines = json.load(sys.stdin)
    out = sys.stdout
    sys.stdout = sys.stderr
    # Before anything of vLLM is imported: with help wanted, it reads the descriptions too.
    sys.argv = ["vllm", "serve", "--help=all"]
    from vllm.entrypoints.cli.serve import ServeSubcommand  # type: ignore  # noqa: PLC0415
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore  # noqa: PLC0415

    from scripts.flags_vllm import describe, parser_digest  # noqa: PLC0415

    parser = FlexibleArgumentParser(description="vLLM CLI")
    commands = parser.add_subparsers(required=False, dest="subparser")
    serve = ServeSubcommand().subparser_init(commands)

    def verdict(line: list[str]) -> str | None:
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                parser.parse_args(["serve", *line])
        except SystemExit as end:
            return said.getvalue()[-400:] if end.code else None
        except Exception as error:
            return repr(error)
        return None

    rows = [describe(serve, action) for action in serve._actions if action.option_strings]
    answer = {
        "parser": parser_digest(),
        "arguments": rows,
        "verdicts": [verdict(line) for line in lines],
    }
    json.dump(answer, out)


if __name__ == "__main__":
    main()
