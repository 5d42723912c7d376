"""ImageBind as it was released, at toy size, and what the original computes from it.

Names and shapes are written out here, attention is torch's own module, and spectrograms are Kaldi's filter bank from
its definition, in float64: nothing is shared with what is tested.
"""

import math
from fractions import Fraction

import torch
from torch import nn
from torch.nn import functional as F

SIZES = {
    "output": 24,
    "vision": {"width": 32, "layers": 2, "heads": 2},
    "audio": {"width": 48, "layers": 3, "heads": 3},
}
TOKENS = {"vision": 1 + 16 * 16, "audio": 1 + 12 * 19}
STEM = {"vision": ("rgbt_stem.proj.1.weight", (3, 2, 14, 14)), "audio": ("rgbt_stem.proj.weight", (1, 16, 16))}


def weights(seed=0):
    """All tensors of `imagebind_huge.pth` that matter here, by their names in it, and some of the other senses."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape, std=0.3):
        return torch.randn(shape, generator=g) * std

    def norm(name, width):
        return {f"{name}.weight": 1 + normal(width, std=0.1), f"{name}.bias": normal(width, std=0.1)}

    state = {}
    for sense in ("vision", "audio"):
        width = SIZES[sense]["width"]
        before, trunk, head = (f"modality_{part}.{sense}" for part in ("preprocessors", "trunks", "heads"))
        state[f"{before}.cls_token"] = normal(1, 1, width)
        state[f"{before}.pos_embedding_helper.pos_embed"] = normal(1, TOKENS[sense], width)
        stem, shape = STEM[sense]
        state[f"{before}.{stem}"] = normal(width, *shape, std=0.1)
        if sense == "audio":
            state |= norm(f"{before}.rgbt_stem.norm_layer", width)
        else:
            state |= norm(f"{trunk}.pre_transformer_layer.0", width)
        for i in range(SIZES[sense]["layers"]):
            block = f"{trunk}.blocks.{i}"
            state[f"{block}.attn.in_proj_weight"] = normal(3 * width, width)
            state[f"{block}.attn.in_proj_bias"] = normal(3 * width)
            state[f"{block}.attn.out_proj.weight"] = normal(width, width)
            state[f"{block}.attn.out_proj.bias"] = normal(width)
            if sense == "audio":
                state |= {f"{block}.attn.bias_k": normal(1, 1, width), f"{block}.attn.bias_v": normal(1, 1, width)}
            for name, (rows, columns) in {"fc1": (4 * width, width), "fc2": (width, 4 * width)}.items():
                state[f"{block}.mlp.{name}.weight"] = normal(rows, columns)
                state[f"{block}.mlp.{name}.bias"] = normal(rows)
            state |= norm(f"{block}.norm_1", width) | norm(f"{block}.norm_2", width)
        state |= norm(f"{head}.0", width)
        state[f"{head}.2.weight"] = normal(SIZES["output"], width)
    return state | {
        "modality_preprocessors.text.token_embedding.weight": normal(9, 4),
        "modality_trunks.thermal.blocks.0.attn.bias_k": normal(1, 1, 4),
        "modality_heads.imu.3.weight": normal(2, 4),
        "modality_postprocessors.audio.1.log_logit_scale": torch.tensor(math.log(20.0)),
        "modality_postprocessors.depth.1.log_logit_scale": torch.tensor(math.log(5.0)),
    }


def release(folder, state=None):
    path = folder / "imagebind_huge.pth"
    torch.save(weights() if state is None else state, path)
    return path


class Original:
    def __init__(self, state):
        self.state = state

    @torch.no_grad()
    def embed(self, sense, x):
        """Not yet of length 1; tokens come before the batch, as torch's attention has them by default."""
        state, width = self.state, SIZES[sense]["width"]
        before, trunk, head = (f"modality_{part}.{sense}" for part in ("preprocessors", "trunks", "heads"))

        def norm(x, name, eps=1e-6):
            return F.layer_norm(x, (width,), state[f"{name}.weight"], state[f"{name}.bias"], eps)

        kernel = state[f"{before}.{STEM[sense][0]}"]
        if sense == "vision":
            patches = F.conv3d(x, kernel, stride=(2, 14, 14)).flatten(2)
        else:
            patches = F.conv2d(x, kernel, stride=10).flatten(2)
        tokens = patches.permute(2, 0, 1)
        if sense == "audio":
            tokens = norm(tokens, f"{before}.rgbt_stem.norm_layer", 1e-5)
        first = state[f"{before}.cls_token"].repeat(1, len(x), 1)
        tokens = torch.cat([first, tokens]) + state[f"{before}.pos_embedding_helper.pos_embed"].transpose(0, 1)
        if sense == "vision":
            tokens = norm(tokens, f"{trunk}.pre_transformer_layer.0")
        for i in range(SIZES[sense]["layers"]):
            block = f"{trunk}.blocks.{i}"
            attention = nn.MultiheadAttention(width, SIZES[sense]["heads"], add_bias_kv=sense == "audio").eval()
            inside = f"{block}.attn."
            attention.load_state_dict({n.removeprefix(inside): v for n, v in state.items() if n.startswith(inside)})
            y = norm(tokens, f"{block}.norm_1")
            tokens = tokens + attention(y, y, y, need_weights=False)[0]
            y = norm(tokens, f"{block}.norm_2")
            y = F.gelu(F.linear(y, state[f"{block}.mlp.fc1.weight"], state[f"{block}.mlp.fc1.bias"]))
            tokens = tokens + F.linear(y, state[f"{block}.mlp.fc2.weight"], state[f"{block}.mlp.fc2.bias"])
        return norm(tokens, f"{head}.0")[0] @ state[f"{head}.2.weight"].T

    def score(self, frames, frame_rate, wave):
        """Of a mono sound at 16 kHz."""
        seen, heard = (
            F.normalize(self.embed(sense, x).double(), dim=-1).mean(0)
            for sense, x in (("vision", pictures(frames, frame_rate)), ("audio", spectrograms(wave)))
        )
        return (seen @ heard / seen.norm() / heard.norm()).item()


def clip_starts(duration, count):
    room = max(duration - 2, 0)
    return [room * Fraction(i, count - 1) for i in range(count)]


def pictures(frames, frame_rate):
    """Five clips of two frames, each cut three times out of frames whose shorter side has 224 pixels."""
    made, frame_rate = [], Fraction(frame_rate)
    for start in clip_starts(len(frames) / frame_rate, 5):
        inside = range(math.ceil(start * frame_rate), min(math.ceil((start + 2) * frame_rate), len(frames)))
        pair = frames[[inside[0], inside[-1]]].permute(0, 3, 1, 2).float() / 255
        height, width = pair.shape[2:]
        size = (int(224 * height / width), 224) if width < height else (224, int(224 * width / height))
        pair = F.interpolate(pair, size, mode="bilinear", align_corners=False)
        for channel, (mean, std) in enumerate(
            [(0.48145466, 0.26862954), (0.4578275, 0.26130258), (0.40821073, 0.27577711)]
        ):
            pair[:, channel] = (pair[:, channel] - mean) / std
        room = max(size) - 224
        for edge in (0, -(-room // 2), room):
            part = pair[:, :, edge : edge + 224] if size[0] > 224 else pair[:, :, :, edge : edge + 224]
            made.append(part.transpose(0, 1))
    return torch.stack(made)


def filter_bank(wave):
    """Kaldi's: frames of 25 ms every 10 ms, 128 triangles on the mel scale from 20 Hz up, in logarithms."""
    mels = lambda hertz: 1127 * torch.log1p(torch.as_tensor(hertz, dtype=torch.float64) / 700)  # noqa: E731
    x = wave.double().unfold(0, 400, 160)
    x = x - x.mean(1, keepdim=True)
    x = x - 0.97 * torch.cat([x[:, :1], x[:, :-1]], dim=1)
    x = x * (0.5 - 0.5 * torch.cos(2 * math.pi * torch.arange(400) / 399))
    power = torch.fft.rfft(x, 512).abs() ** 2
    corners = torch.linspace(mels(20), mels(8000), 130, dtype=torch.float64)
    places, step = mels(torch.arange(257) * 16_000 / 512), corners[1] - corners[0]
    triangles = (1 - (places[:, None] - corners[1:-1]).abs() / step).clamp_min(0)
    return (power @ triangles).clamp_min(torch.finfo(torch.float32).eps).log()


def spectrograms(wave):
    """Three clips of two seconds at 16 kHz, each filled up with zeros to 204 steps."""
    made = []
    for start in clip_starts(Fraction(len(wave), 16_000), 3):
        bands = filter_bank(wave[int(start * 16_000) : int((start + 2) * 16_000)])
        bands = torch.cat([bands, torch.zeros(204 - len(bands), 128)])
        made.append((bands.T[None] + 4.268) / 9.138)
    return torch.stack(made).float()
