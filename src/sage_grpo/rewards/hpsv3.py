"""HPSv3: how much people would prefer the frames, as pictures of the prompt, judged by Qwen2-VL-7B.

The model reads a picture and an instruction that ends with a special token. A small network on that token's hidden
state gives the mean and the spread of the preference. The score is the mean, averaged over a few frames. Scores are not
normalised, so compare them within a prompt. They are gamed by glossy stills; motion is not seen.

The scorer needs files that are not shipped here: HPSv3.safetensors (MizzenAI/HPSv3), tokenizer and sizes of
Qwen2-VL-7B-Instruct, and the instruction. The instruction is read out of a wheel of the package `hpsv3` (MIT). The
wheel is not installed: it would bring an old transformers, and packages named `evaluate` and `generate`.
"""

import ast
import hashlib
import logging
import re
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import pre_tokenizers
from torch import Tensor, nn
from transformers import AutoTokenizer, Qwen2Tokenizer, Qwen2VLConfig

from sage_grpo.core.protocols import Prompt
from sage_grpo.registry import reward
from sage_grpo.rewards.errors import MissingWeights, RewardError
from sage_grpo.rewards.frames import VideoScorer, bounded, frame_numbers
from sage_grpo.rewards.videoalign.frames import CELL, FRAMES_OF_PATCH, MERGE, frame_size, patches, resize, without
from sage_grpo.rewards.videoalign.model import DTYPES, empty_model

WEIGHTS, TOKEN, PROMPT_PLACE, HEAD = "HPSv3.safetensors", "<|Reward|>", "{text_prompt}", "rm_head."
INSTRUCTIONS, PARTS = "hpsv3/dataset/data_collator_qwen.py", ("INSTRUCTION", "prompt_with_special_token")
RELEASED = "f6ee57479d4e9eee76b49c00dc962e1e696a5a2b3cc32cebd9b1fa76fe27502c"  # of the instruction
PIXELS = 256 * CELL**2  # every picture has about so many
CHAT = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>{instruction}<|im_end|>\n"
    "<|im_start|>assistant\n"
)

log = logging.getLogger(__name__)


def read_instruction(source: str | None, near: Path) -> str:
    """Return the instruction that HPSv3 adds to each picture, with places for the prompt and for its special token.

    Args:
        source: A wheel of the package `hpsv3`, the file data_collator_qwen.py of that package, or a text file. The file
            is read, never run. By default the first hpsv3-*.whl in the folder `near`.
    """
    path = Path(source).expanduser() if source else next(iter(sorted(near.glob("hpsv3-*.whl"))), None)
    if path is None or not path.is_file():
        raise MissingWeights(
            f"hpsv3: the instruction {path or ''} is missing; pip download --no-deps hpsv3==1.0.0 -d {near}"
        )
    try:
        raw = zipfile.ZipFile(path).read(INSTRUCTIONS) if path.suffix == ".whl" else path.read_bytes()
    except (KeyError, zipfile.BadZipFile) as error:
        raise RewardError(f"hpsv3: {path} is not a wheel of hpsv3 ({error})") from error
    text = raw.decode()
    if path.suffix != ".txt":
        constants = {
            name.id: ast.literal_eval(node.value)
            for node in ast.parse(text).body
            if isinstance(node, ast.Assign)
            for name in node.targets
            if isinstance(name, ast.Name) and name.id in PARTS
        }
        text = "".join(str(constants.get(part, "")) for part in PARTS)
    if text.count(PROMPT_PLACE) != 1 or text.count(TOKEN) != 1:
        raise RewardError(f"hpsv3: {path} is not its instruction: it should have {PROMPT_PLACE} and {TOKEN} once each")
    if hashlib.sha256(text.encode()).hexdigest() != RELEASED:
        log.warning("hpsv3: %s is not the instruction of hpsv3 1.0.0, so scores will not be those of HPSv3", path)
    return text


def sort_tensors(saved: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split the tensors of HPSv3's checkpoint into those of Qwen2-VL, under current names, and those of the head."""
    network, head = {}, {}
    for name, value in saved.items():
        if name.startswith(HEAD):
            head[name.removeprefix(HEAD)] = value.float()
        elif not name.startswith("lm_head."):
            network[f"language_{name}" if name.startswith("model.") else name] = value
    return network, head


def make_head(tensors: Mapping[str, Tensor], width: int) -> nn.Sequential:
    """Return the network of three layers that turns a hidden state (width,) into mean and spread of the preference.

    Args:
        tensors: Weights and biases of the layers, which also give the widths of the inner layers.
    """
    inner = [len(tensors.get(f"{i}.bias", ())) for i in (0, 3)]
    with torch.device("meta"):  # without random weights to begin with
        first, middle, last = nn.Linear(width, inner[0]), nn.Linear(inner[0], inner[1]), nn.Linear(inner[1], 2)
    head = nn.Sequential(first, nn.ReLU(), nn.Dropout(), middle, nn.ReLU(), last)  # numbered as in the checkpoint
    try:
        head.load_state_dict(dict(tensors), assign=True)
    except RuntimeError as error:
        raise RewardError(f"hpsv3: the checkpoint's {HEAD}* is not HPSv3's: {str(error)[:400]}") from error
    return head.eval().requires_grad_(False)


@reward("hpsv3", extra="models")
class HPSv3Reward(VideoScorer):
    """HPSv3's mean preference for the frames as pictures of the prompt, averaged over a few frames.

    Args:
        path: HPSv3.safetensors or its folder.
        base: Folder of Qwen2-VL-7B-Instruct, for tokenizer and sizes.
        instruction: A wheel of the package hpsv3 or a file out of it, by default hpsv3-*.whl next to the weights.
        frames: How many frames of a video are scored.
        device: Where to score, by default on the host.
        dtype: Precision of the network; the original's is bfloat16.
    """

    names = ("hpsv3",)
    device_bytes = 15_500_000_000  # of its weights in bfloat16: what a plan counts

    def __init__(
        self,
        path: str,
        base: str,
        *,
        instruction: str | None = None,
        frames: int = 4,
        device: str | None = None,
        dtype: str = "bfloat16",
    ) -> None:
        file, folder = Path(path).expanduser(), Path(base).expanduser()
        file = file / WEIGHTS if file.is_dir() else file
        if not file.is_file():
            raise MissingWeights(f"hpsv3: {file} is not there; hf download MizzenAI/HPSv3 {WEIGHTS} --local-dir FOLDER")
        if not (folder / "config.json").is_file():
            raise MissingWeights(
                f"hpsv3: {base} has no config.json; hf download Qwen/Qwen2-VL-7B-Instruct --exclude '*.safetensors' "
                f"--local-dir {base}"
            )
        if dtype not in DTYPES or frames < 1:
            raise RewardError(f"hpsv3: dtype={dtype}, frames={frames}; dtype is {' or '.join(DTYPES)}, frames ≥ 1")
        self.frames, self.dtype = frames, DTYPES[dtype]
        self.instruction = read_instruction(instruction, file.parent)
        try:
            network, head = sort_tensors(load_file(file))
        except SafetensorError as error:
            raise RewardError(f"hpsv3: {file} cannot be read; was it downloaded whole? {error}") from error
        self.model = self._network(folder, network, file)
        self.head = make_head(head, self.model.config.text_config.hidden_size)
        try:
            self.device = torch.device(device) if device else next(self.head.parameters()).device
            # buffers too: the original casts the whole module, and so rounds even the frequencies of its positions
            self.model.to(self.device, self.dtype)
            self.head.to(self.device)
        except (RuntimeError, AssertionError) as error:
            raise RewardError(f"hpsv3 cannot be put on device {device!r}: {str(error).splitlines()[0]}") from error
        self._read_words(folder)

    def _network(self, folder: Path, state: Mapping[str, Tensor], file: Path) -> Any:
        config = Qwen2VLConfig.from_pretrained(folder)
        if (embedding := state.get("language_model.embed_tokens.weight")) is not None:
            config.text_config.vocab_size = len(embedding)  # one more than the base's, for the token
        model = empty_model(config)
        try:
            model.load_state_dict({name: x.to(self.dtype) for name, x in state.items()}, strict=True, assign=True)
        except RuntimeError as error:
            raise RewardError(f"hpsv3: {file} does not fit {folder}: {str(error)[:400]}") from error
        return model.eval().requires_grad_(False)

    def _read_words(self, folder: Path) -> None:
        self.tokenizer = cast(Any, AutoTokenizer).from_pretrained(folder, local_files_only=True)
        self.tokenizer.add_special_tokens({"additional_special_tokens": [TOKEN]})
        special = sorted(self.tokenizer.get_added_vocab(), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special)))
        self._token = self.tokenizer.convert_tokens_to_ids(TOKEN)
        ids, config = self._tokens("", 1), self.model.config
        if self._token >= config.text_config.vocab_size or (ids == config.image_token_id).sum() != 1:
            raise RewardError(f"hpsv3: the tokenizer of {folder} is not that of Qwen2-VL-7B-Instruct")

    def _tokens(self, text: str, picture_tokens: int) -> Tensor:
        instruction = self.instruction.replace(PROMPT_PLACE, without(self._special, text))
        chat = CHAT.replace("{instruction}", instruction)
        ids = torch.tensor(self.tokenizer(chat, add_special_tokens=False)["input_ids"])
        return ids.repeat_interleave(torch.where(ids == self.model.config.image_token_id, picture_tokens, 1))

    def frame_indices(self, frames: int) -> list[int]:
        return frame_numbers(frames, self.frames)

    @torch.no_grad()
    def score_video(self, frames: Tensor, prompt: Prompt) -> list[float]:
        chosen = frames[self.frame_indices(len(frames))].to(self.device)
        size = frame_size(chosen.shape[1], chosen.shape[2], most=PIXELS, least=PIXELS)
        means = [self.preference(picture, bounded(prompt.text))[0] for picture in resize(chosen, size)]
        return [float(torch.stack(means).mean())]

    def preference(self, picture_CHW: Tensor, text: str) -> Tensor:
        """Return the mean and the spread of the preference for one picture as an image of `text`, as (2,).

        The picture is (3, H, W) from 0 to 255, with sides that are multiples of `CELL` pixels.
        """
        pixels, grid = patches(picture_CHW.expand(FRAMES_OF_PATCH, -1, -1, -1))  # a picture is a video that stands
        tokens = self._tokens(text, len(pixels) // MERGE**2).to(self.device)[None]
        length = tokens.shape[1]
        hidden = self.model(
            input_ids=tokens,
            # plain positions, as in the original: left to itself the library numbers rows and columns of the picture
            position_ids=torch.arange(length, device=self.device).expand(3, 1, length),
            pixel_values=pixels.to(self.dtype),
            image_grid_thw=grid[None].to(self.device),
            use_cache=False,
        ).last_hidden_state
        both: Tensor = self.head(hidden[tokens == self._token].float())[0].double()
        return both

    @classmethod
    def tiny(cls) -> Self:
        with tempfile.TemporaryDirectory() as folder:
            make_tiny_release(Path(folder))
            return cls(folder, folder, instruction=f"{folder}/instruction.txt", frames=1, dtype="float32")


def make_tiny_release(folder: Path) -> None:
    """Write HPSv3's checkpoint, its Qwen2-VL folder and an instruction at toy size.

    Names and layers are those of the release, numbers are random.
    """
    words = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Qwen2Tokenizer(
        vocab={word: i for i, word in enumerate([*words, *letters])},
        merges=[],
        unk_token=words[0],
        pad_token=words[0],
        eos_token=words[2],
        additional_special_tokens=words[1:],
    )
    tokenizer.save_pretrained(folder)
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    text = {
        "vocab_size": len(words) + len(letters) + 1,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "rope_parameters": rope,
    }
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2}
    config = Qwen2VLConfig(
        text_config=text, vision_config=vision, image_token_id=5, vision_start_token_id=3, vision_end_token_id=4
    )
    config.save_pretrained(folder)
    rng = torch.Generator().manual_seed(0)
    state = {n: torch.randn(x.shape, generator=rng) * 0.2 for n, x in empty_model(config).state_dict().items()}
    state = {n.replace("language_model.", "model."): x + ("norm" in n or "ln_q" in n) for n, x in state.items()}
    for layer, shape in {"0": (16, 64), "3": (8, 16), "5": (2, 8)}.items():
        state[f"{HEAD}{layer}.weight"] = torch.randn(shape, generator=rng) * 0.5
        state[f"{HEAD}{layer}.bias"] = torch.randn(shape[:1], generator=rng) * 0.5
    state["lm_head.weight"] = torch.zeros(2, 64)
    save_file(state, folder / WEIGHTS)
    (folder / "instruction.txt").write_text(f"\nRate it.\nPrompt - {PROMPT_PLACE}\nRating: {TOKEN}\nEND\n")
