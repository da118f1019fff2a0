"""A model's facts from the hub: config.json and the headers of its safetensors files.

No weights are downloaded: huggingface_hub reads the headers by HTTP range
requests. It is imported only when asked, because it is slow to import.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_cluster.model.safetensors import ModelReadError, collect, read_json, with_tensors
from vllm_cluster.plan.memory.config import names_dtype, read_config
from vllm_cluster.plan.memory.facts import ModelFacts, Runner

if TYPE_CHECKING:
    from huggingface_hub import HfApi

ANSWER_TIMEOUT_S = 10


def read_hub_model(
    repo: str,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    runner: Runner | None = None,
    api: HfApi | None = None,
) -> ModelFacts:
    """The facts of a model on the hub, by its name ("org/model").

    The endpoint is HF_ENDPOINT's. Raises ModelReadError when the hub cannot be
    reached, does not know the model, or asks for a token; the message says which.
    """
    import httpx  # noqa: PLC0415 - slow, see above
    from huggingface_hub import HfApi, hf_hub_download  # noqa: PLC0415 - slow, see above
    from huggingface_hub.errors import (  # noqa: PLC0415
        HfHubHTTPError,
        LocalEntryNotFoundError,
        NotASafetensorsRepoError,
        OfflineModeIsEnabled,
        SafetensorsParsingError,
    )

    hub = api or HfApi(token=token)
    try:
        # Asked once, by itself: what follows tries for half a minute when nobody answers.
        httpx.head(hub.endpoint, timeout=ANSWER_TIMEOUT_S)
        path = hf_hub_download(
            repo, "config.json", revision=revision, token=token, endpoint=hub.endpoint
        )
        metadata = hub.get_safetensors_metadata(repo, revision=revision, token=token)
    except NotASafetensorsRepoError as error:
        raise ModelReadError(f"{repo} has no safetensors files on the hub") from error
    except (SafetensorsParsingError, LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise ModelReadError(f"{repo}: {error}") from error
    except HfHubHTTPError as error:
        raise ModelReadError(f"{repo} at {hub.endpoint}: {error}") from error
    except httpx.HTTPError as error:
        raise ModelReadError(f"{repo}: {hub.endpoint} cannot be reached: {error}") from error
    config = read_json(Path(path))
    facts = read_config(config, name=repo, runner=runner)
    found = [
        (name, str(info.dtype), tuple(info.shape))
        for file in metadata.files_metadata.values()
        for name, info in file.tensors.items()
    ]
    size = (metadata.metadata or {}).get("total_size")
    facts = with_tensors(facts, collect(found), named=names_dtype(config))
    return replace(facts, published_bytes=int(size) if size is not None else None)
