"""GPUs as their makers describe them, and how long work takes on one: a roofline, operation by operation."""

from collections.abc import Mapping
from dataclasses import dataclass

from sage_grpo.config import ConfigError
from sage_grpo.plan.operations import Operation
from sage_grpo.plan.probe import Cost
from sage_grpo.suggest import did_you_mean

GB, TB, TERA = 1e9, 1e12, 1e12


@dataclass(frozen=True)
class GPU:
    """Dense bf16 without sparsity; links in one direction, a GPU's share of them."""

    flops: float
    memory: float
    bandwidth: float
    link: float  # to the other GPUs of its node
    network: float  # to other nodes
    per_node: int = 8
    host: float = 25 * GB


GPUS = {
    "b200-180g": GPU(2250 * TERA, 180 * GB, 8.0 * TB, 900 * GB, 50 * GB, host=50 * GB),
    "h200-141g": GPU(989 * TERA, 141 * GB, 4.8 * TB, 450 * GB, 50 * GB, host=50 * GB),
    "h100-80g": GPU(989 * TERA, 80 * GB, 3.35 * TB, 450 * GB, 50 * GB, host=50 * GB),
    "h800-80g": GPU(989 * TERA, 80 * GB, 3.35 * TB, 200 * GB, 50 * GB, host=50 * GB),
    "h20-96g": GPU(148 * TERA, 96 * GB, 4.0 * TB, 450 * GB, 50 * GB, host=50 * GB),
    "mi300x-192g": GPU(1307 * TERA, 192 * GB, 5.3 * TB, 448 * GB, 50 * GB, host=50 * GB),
    "a100-80g": GPU(312 * TERA, 80 * GB, 2.04 * TB, 300 * GB, 25 * GB),
    "a100-40g": GPU(312 * TERA, 40 * GB, 1.56 * TB, 300 * GB, 25 * GB),
    "l40s-48g": GPU(362 * TERA, 48 * GB, 0.864 * TB, 25 * GB, 12.5 * GB),
    "rtx5090-32g": GPU(209 * TERA, 32 * GB, 1.79 * TB, 25 * GB, 1.25 * GB, per_node=1),
    "rtx4090-24g": GPU(165 * TERA, 24 * GB, 1.01 * TB, 12 * GB, 1.25 * GB, per_node=1),
}
COMPUTE_SHARE, MEMORY_SHARE, LINK_SHARE = 0.6, 0.8, 0.8  # what good kernels reach of the maker's figures
HOP = 4e-6  # seconds that a message of a ring needs for each further member


def find_gpu(name: str) -> GPU:
    if name not in GPUS:
        raise ConfigError(f"--gpu {name!r} is not known; {did_you_mean(name, GPUS)}")
    return GPUS[name]


def at_roofline(operations: Mapping[Operation, float], gpu: GPU) -> float:
    """Each operation is bound by arithmetic or by memory. Elementwise ones are taken unfused, as without compile."""
    return sum(
        n * max(flops / (COMPUTE_SHARE * gpu.flops), moved / (MEMORY_SHARE * gpu.bandwidth))
        for (flops, moved), n in operations.items()
    )


@dataclass(frozen=True)
class ProcessGroup:
    """Processes that exchange messages."""

    size: int
    nodes: int  # that they are on

    def seconds(self, moved: float, messages: float, gpu: GPU) -> float:
        """A ring: everyone passes on all parts but its own."""
        if self.size == 1:
            return 0.0
        speed = LINK_SHARE * (gpu.link if self.nodes == 1 else gpu.network)
        return moved * (self.size - 1) / self.size / speed + messages * (self.size - 1) * HOP


@dataclass(frozen=True)
class PassTime:
    """Seconds of one pass; messages of weights travel during the arithmetic, those of tokens do not."""

    arithmetic: float
    weights: float
    tokens: float

    @property
    def seconds(self) -> float:
        return max(self.arithmetic, self.weights) + self.tokens

    @property
    def bound(self) -> str:
        parts = {"arithmetic": self.arithmetic, "messages of weights": self.weights - self.arithmetic}
        return max((parts | {"messages of tokens": self.tokens}).items(), key=lambda item: item[1])[0]


def pass_time(cost: Cost, gpu: GPU, sharded: ProcessGroup, replicas: ProcessGroup, sequence: ProcessGroup) -> PassTime:
    weights = sharded.seconds(
        sum(cost.sent.get(k, 0) for k in ("weights", "gradients")),
        sum(cost.messages.get(k, 0) for k in ("weights", "gradients")),
        gpu,
    )
    # copies of the weights (HSDP) also add their shards of the gradients up, there and back
    weights += 2 * replicas.seconds(
        cost.sent.get("gradients", 0) / sharded.size, cost.messages.get("gradients", 0), gpu
    )
    tokens = sequence.seconds(cost.sent.get("tokens", 0), cost.messages.get("tokens", 0), gpu)
    return PassTime(at_roofline(cost.operations, gpu), weights, tokens)
