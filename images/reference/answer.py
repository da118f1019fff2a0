"""Ask vLLM in this one process. Runs inside the image's tree: ``python answer.py MODEL REQUEST``.

REQUEST is JSON: {"prompt": text, "max_tokens": number}. The last line printed is JSON:
{"text": answer, "token_ids": the answer's tokens}.
"""

from __future__ import annotations

import json
import sys

from vllm import LLM, SamplingParams  # type: ignore[import-not-found]


def main(model: str, request: str) -> None:
    """Print the greedy answer of ``model``."""
    asked = json.loads(request)
    # The same compilation as on the cluster's hosts: other kernels, other last digits.
    llm = LLM(model, max_model_len=512, compilation_config={"mode": 2, "backend": "eager"})
    sampling = SamplingParams(temperature=0, max_tokens=asked["max_tokens"], ignore_eos=True)
    answer = llm.generate([asked["prompt"]], sampling, use_tqdm=False)[0].outputs[0]
    print(json.dumps({"text": answer.text, "token_ids": list(answer.token_ids)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
