"""Ask one vLLM process: ``python -m images.reference [--prompt TEXT] [--max-tokens N]``."""

from __future__ import annotations

import json

import click

from images.progress import Progress
from images.reference.ask import MAX_TOKENS, PROMPT, reference


@click.command()
@click.option("--prompt", default=PROMPT, show_default=True)
@click.option("--max-tokens", default=MAX_TOKENS, show_default=True)
def main(prompt: str, max_tokens: int) -> None:
    """Print what one vLLM process answers to a prompt, greedily, and keep it."""
    known = reference(Progress(), prompt, max_tokens)
    print(json.dumps({key: value for key, value in known.items() if key != "of"}))


if __name__ == "__main__":
    main()
