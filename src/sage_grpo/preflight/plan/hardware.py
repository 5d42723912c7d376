"""GPUs as their makers describe them, and the seconds that a network pass takes on them, by a roofline."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sage_grpo.config import ConfigError
from sage_grpo.preflight.plan.assumptions import Assumed
from sage_grpo.preflight.plan.operations import Operation
from sage_grpo.preflight.plan.probe import Cost
from sage_grpo.suggest import did_you_mean

GB, TB, TERA = 1e9, 1e12, 1e12


@dataclass(frozen=True)
class GPU:
    """A GPU as its maker describes it: operations per second, bytes of memory, and bytes per second.

    Operations are in dense bf16. The speed of a link is that of one GPU in one direction.
    """

    flops: float
    memory: float
    bandwidth: float
    link: float  # to the other GPUs of its node
    network: float  # to other nodes
    per_node: int = 8
    host: float = 25 * GB
    wide: bool = False  # FlashAttention 2 cannot fill its matrix units: Hopper and newer, MI300X


GPUS = {
    "b200-180g": GPU(2250 * TERA, 180 * GB, 8.0 * TB, 900 * GB, 50 * GB, host=50 * GB, wide=True),
    "h200-141g": GPU(989 * TERA, 141 * GB, 4.8 * TB, 450 * GB, 50 * GB, host=50 * GB, wide=True),
    "h100-80g": GPU(989 * TERA, 80 * GB, 3.35 * TB, 450 * GB, 50 * GB, host=50 * GB, wide=True),
    "h800-80g": GPU(989 * TERA, 80 * GB, 3.35 * TB, 200 * GB, 50 * GB, host=50 * GB, wide=True),
    "h20-96g": GPU(148 * TERA, 96 * GB, 4.0 * TB, 450 * GB, 50 * GB, host=50 * GB),
    "mi300x-192g": GPU(1307 * TERA, 192 * GB, 5.3 * TB, 448 * GB, 50 * GB, host=50 * GB, wide=True),
    "a100-80g": GPU(312 * TERA, 80 * GB, 2.04 * TB, 300 * GB, 25 * GB),
    "a100-40g": GPU(312 * TERA, 40 * GB, 1.56 * TB, 300 * GB, 25 * GB),
    "l40s-48g": GPU(362 * TERA, 48 * GB, 0.864 * TB, 25 * GB, 12.5 * GB),
    "rtx5090-32g": GPU(209 * TERA, 32 * GB, 1.79 * TB, 25 * GB, 1.25 * GB, per_node=1),
    "rtx4090-24g": GPU(165 * TERA, 24 * GB, 1.01 * TB, 12 * GB, 1.25 * GB, per_node=1),
}


def find_gpu(name: str) -> GPU:
    if name not in GPUS:
        raise ConfigError(f"--gpu {name!r} is not known; {did_you_mean(name, GPUS)}")
    return GPUS[name]


def guess_gpu(name: str) -> str | None:
    """Return the name in `GPUS` for a GPU that its maker calls `name`: `NVIDIA H100 80GB HBM3` is `h100-80g`.

    It is None if no name in `GPUS` fits. Names must fit whole: an RTX A1000 is no A100, and a GH200 no H200.
    """
    plain = re.sub(r"(?<=rtx) ", "", name.lower().replace("geforce", ""))
    plain = re.sub(r"(?<=\d) (?=gb\b)", "", plain)
    words = set(re.split(r"[^a-z0-9]+", plain))
    known = [gpu for gpu in GPUS if gpu.split("-")[0] in words and "laptop" not in words]
    exact = [gpu for gpu in known if gpu.split("-")[1] + "b" in words]
    return next(iter([*exact, *known]), None)


def at_roofline(operations: Mapping[Operation, float], gpu: GPU, assumed: Assumed) -> float:
    """Return the seconds of operations on a GPU. Each takes as long as its arithmetic or its memory traffic needs.

    `operations` has how often each one is run. Elementwise operations are not fused, as without `torch.compile`.
    """
    return sum(
        n * max(flops / (assumed.share(kind) * gpu.flops), moved / (assumed.memory * gpu.bandwidth))
        for (flops, moved, kind), n in operations.items()
    )


@dataclass(frozen=True)
class ProcessGroup:
    """A group of processes that exchange messages, and the number of nodes that they are on."""

    size: int
    nodes: int  # that they are on

    def seconds(self, moved: float, messages: float, gpu: GPU, assumed: Assumed) -> float:
        """Return the seconds of messages in a ring, in which each process passes on all parts except its own.

        `moved` is the bytes of the whole tensors, and `messages` the number of messages.
        """
        if self.size == 1:
            return 0.0
        speed = assumed.links * (gpu.link if self.nodes == 1 else gpu.network)
        return moved * (self.size - 1) / self.size / speed + messages * (self.size - 1) * assumed.hop


@dataclass(frozen=True)
class PassTime:
    """The seconds of one pass: of its arithmetic, of its messages of weights, and of its messages of tokens.

    Messages of weights overlap with the arithmetic, except for the share `exposed`. Messages of tokens do not overlap.
    """

    arithmetic: float
    weights: float
    tokens: float
    exposed: float  # share of the shorter of arithmetic and weights that does not overlap

    @property
    def seconds(self) -> float:
        return self.arithmetic + self.waiting + self.tokens

    @property
    def waiting(self) -> float:
        """Seconds of messages of weights that arithmetic does not cover, in which the GPU waits."""
        covered = (1 - self.exposed) * min(self.arithmetic, self.weights)
        return self.weights - covered

    @property
    def bound(self) -> str:
        parts = {"arithmetic": self.arithmetic, "messages of weights": self.waiting}
        return max((parts | {"messages of tokens": self.tokens}).items(), key=lambda item: item[1])[0]


def pass_time(
    cost: Cost,
    gpu: GPU,
    assumed: Assumed,
    sharded: ProcessGroup,
    replicas: ProcessGroup,
    sequence: ProcessGroup,
    *,
    sums: bool = True,
) -> PassTime:
    """Return the seconds of a pass on a GPU, from its cost.

    Args:
        cost: What one process does and sends.
        gpu: The kind of GPU.
        assumed: Shares of the maker's figures that are reached.
        sharded: Processes that exchange shards of the weights.
        replicas: Processes that hold the same shard in different copies of the weights.
        sequence: Processes that share a video.
        sums: Whether the pass adds gradients up over the copies of the weights.
    """
    weights = sharded.seconds(
        sum(cost.sent.get(k, 0) for k in ("weights", "gradients")),
        sum(cost.messages.get(k, 0) for k in ("weights", "gradients")),
        gpu,
        assumed,
    )
    if sums:  # copies of the weights (HSDP) add their shards of the gradients up, there and back
        shards = cost.sent.get("gradients", 0) / sharded.size
        weights += 2 * replicas.seconds(shards, cost.messages.get("gradients", 0), gpu, assumed)
    tokens = sequence.seconds(cost.sent.get("tokens", 0), cost.messages.get("tokens", 0), gpu, assumed)
    return PassTime(at_roofline(cost.operations, gpu, assumed), weights, tokens, assumed.exposed)
