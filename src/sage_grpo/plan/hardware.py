"""GPUs as their makers describe them, and how long work takes on one: a roofline, operation by operation."""

from collections.abc import Mapping
from dataclasses import dataclass

from sage_grpo.config import ConfigError
from sage_grpo.plan.assumptions import Assumed
from sage_grpo.plan.operations import Operation
from sage_grpo.plan.probe import Cost
from sage_grpo.suggest import did_you_mean

GB, TB, TERA = 1e9, 1e12, 1e12


@dataclass(frozen=True)
class GPU:
    """A GPU as its maker describes it: dense bf16 without sparsity, and its share of the links in one direction."""

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
    """Return the plan's name of a GPU from its maker's, or None: `NVIDIA H100 80GB HBM3` is h100-80g."""
    plain = name.lower().replace(" ", "").replace("geforce", "")
    known = [gpu for gpu in GPUS if gpu.split("-")[0] in plain]
    exact = [gpu for gpu in known if gpu.split("-")[1] in plain]
    return next(iter([*exact, *known]), None)


def at_roofline(operations: Mapping[Operation, float], gpu: GPU, assumed: Assumed) -> float:
    """Return the seconds of operations on a GPU, each bound by arithmetic or by memory.

    Elementwise ones are taken unfused, as without compile.
    """
    return sum(
        n * max(flops / (assumed.share(kind) * gpu.flops), moved / (assumed.memory * gpu.bandwidth))
        for (flops, moved, kind), n in operations.items()
    )


@dataclass(frozen=True)
class ProcessGroup:
    """Processes that exchange messages."""

    size: int
    nodes: int  # that they are on

    def seconds(self, moved: float, messages: float, gpu: GPU, assumed: Assumed) -> float:
        """Return the seconds of messages in a ring: each process passes on all parts except its own.

        `moved` are bytes of the whole, and `messages` their number.
        """
        if self.size == 1:
            return 0.0
        speed = assumed.links * (gpu.link if self.nodes == 1 else gpu.network)
        return moved * (self.size - 1) / self.size / speed + messages * (self.size - 1) * assumed.hop


@dataclass(frozen=True)
class PassTime:
    """The seconds of one pass.

    Messages of weights overlap with the arithmetic except for a share, those of tokens do not.
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
        """Seconds of waiting for weights that arithmetic does not cover."""
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
    """Return the seconds of a pass; `sums` says whether it adds gradients up over copies of the weights."""
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
