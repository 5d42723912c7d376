"""The conversion of ImageBind's released checkpoint into a folder that is read without unpickling anything.

The checkpoint has parts for six senses, of which vision and audio are kept.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from sage_grpo.rewards.checkpoints import check_places, new_folder, sha256, unpickle_tensors
from sage_grpo.rewards.errors import RewardError
from sage_grpo.rewards.imagebind.model import FORMAT, SETTINGS, WEIGHTS
from sage_grpo.rewards.imagebind.network import RELEASED, empty_network

KEPT, LEFT = ("vision", "audio"), ("text", "depth", "thermal", "imu")
PART = re.compile(r"modality_(preprocessors|trunks|heads|postprocessors)\.(\w+)\.(.+)")
SCALE = "1.log_logit_scale"  # a cosine has none
OURS = {  # names of parts: theirs, as regular expressions, and ours
    "preprocessors": {
        r"cls_token": "first",
        r"pos_embedding_helper\.pos_embed": "places",
        r"rgbt_stem\.proj\.(1\.)?": "patch.",
        r"rgbt_stem\.norm_layer\.": "patch_norm.",
    },
    "trunks": {
        r"pre_transformer_layer\.0\.": "norm_before.",
        r"\.attn\.in_proj_": ".attention.into.",
        r"\.attn\.out_proj\.": ".attention.out.",
        r"\.attn\.bias_k": ".attention.spare_key",
        r"\.attn\.bias_v": ".attention.spare_value",
        r"\.mlp\.fc1\.": ".mlp.0.",
        r"\.mlp\.fc2\.": ".mlp.2.",
    },
    "heads": {r"^0\.": "norm_after.", r"^2\.": "project."},
}


def convert(
    source: Path,
    target: Path,
    *,
    sizes: Mapping[str, Any] | None = None,
    emit: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Convert ImageBind's checkpoint into the folder `target`, and return the settings that are written there.

    If anything fails, no folder is left behind.

    Args:
        source: The released file imagebind_huge.pth.
        sizes: Sizes of the network; None for those of the released one.
        emit: Called with the name of each stage, to show progress.
    """
    if target.exists():
        raise RewardError(f"{target} is there already; choose another folder or remove it")
    if not source.is_file():
        raise RewardError(f"{source} is not there: it is imagebind_huge.pth, as it was downloaded")
    emit("reading the weights")
    state = kept(unpickle_tensors(source))
    sizes = dict(sizes or RELEASED)
    check_places(state, empty_network(sizes))
    emit("hashing the source")
    settings = {"format": FORMAT, **sizes, "source": {source.name: sha256(source)}}
    with new_folder(target) as work:
        emit("writing")
        save_file(state, work / WEIGHTS, metadata={"format": "pt"})
        (work / SETTINGS).write_text(json.dumps(settings, indent=1))
    return settings


def kept(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the checkpoint's tensors of vision and audio, in float32 and under the names of `imagebind/network.py`.

    Tensors of the other four senses are left out. A tensor of no known sense keeps its name, and is later refused as
    unknown.
    """
    found = {}
    for name, value in state.items():
        part = PART.fullmatch(name)
        kind, sense, rest = part.groups() if part else ("", "", name)
        if sense in LEFT or (sense in KEPT and kind == "postprocessors" and rest == SCALE):
            continue
        for theirs, ours in OURS.get(kind, {}).items() if sense in KEPT else ():
            rest = re.sub(theirs, ours, rest)
        found[f"{sense}.{rest}" if sense in KEPT else name] = value.float().contiguous()
    return found
