"""What the real `ray start` says of command lines, and which options it has.

Reads a JSON list of command lines on standard input; writes {"arguments": …, "verdicts": […]}.
Nothing is started: the function of the command is taken away before.
"""

import json
import sys


def main() -> None:
    """Answer."""
    lines = json.load(sys.stdin)
    out = sys.stdout
    sys.stdout = sys.stderr
    import click  # noqa: PLC0415
    from ray.scripts.scripts import start  # type: ignore  # noqa: PLC0415

    from scripts.flags_ray import describe  # noqa: PLC0415

    start.callback = lambda **_: None

    def verdict(line: list[str]) -> str | None:
        try:
            start.main(line, standalone_mode=False)
        except click.ClickException as error:
            return error.format_message()
        except SystemExit as end:
            return str(end) if end.code else None
        return None

    options = [each for each in start.params if isinstance(each, click.Option)]
    answer = {
        "arguments": [describe(each) for each in options],
        "verdicts": [verdict(line) for line in lines],
    }
    json.dump(answer, out)


if __name__ == "__main__":
    main()
