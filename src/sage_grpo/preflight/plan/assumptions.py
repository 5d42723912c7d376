"""The assumptions of a plan about GPUs and machines until a run measures them: slow, expected and fast values.

Nothing here is measured by this project. Every assumption names its source.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Case = Literal["slow", "expected", "fast"]
CASES: tuple[Case, ...] = ("slow", "expected", "fast")
Kernel = Literal["chosen", "flash", "cudnn", "flash3"]


@dataclass(frozen=True)
class Assumption:
    """One figure in three cases. A plan takes all its figures at their slow, expected or fast value together."""

    what: str
    slow: float
    expected: float
    fast: float
    source: str

    def at(self, case: Case) -> float:
        return float(getattr(self, case))


MATRICES = Assumption(
    "matrix products, of the maker's dense bf16 figure",
    0.45,
    0.55,
    0.70,
    "Large products reach 0.6 to 0.7 on an H100 that is held at its power limit; small ones and casts reach less.",
)
ATTENTION: dict[Kernel, Assumption] = {
    "chosen": Assumption(
        "attention, by whichever kernel torch chooses",
        0.28,
        0.38,
        0.55,
        "Between FlashAttention 2 and cuDNN, because torch chooses and its choice depends on the version.",
    ),
    "flash": Assumption(
        "attention by FlashAttention 2 on Hopper, newer GPUs and MI300X",
        0.28,
        0.34,
        0.40,
        "The FlashAttention 3 paper reports about 0.35 for FlashAttention 2 on an H100.",
    ),
    "cudnn": Assumption(
        "attention by cuDNN",
        0.42,
        0.52,
        0.62,
        "Reports of 1.7 to 2.3 times the speed of FlashAttention 2 for training on an H100.",
    ),
    "flash3": Assumption(
        "attention by FlashAttention 3",
        0.45,
        0.58,
        0.72,
        "Its paper reports up to 0.75 forward on an H100; backward is slower.",
    ),
}
NARROW_ATTENTION = Assumption(
    "attention on GPUs older or narrower than Hopper",
    0.42,
    0.55,
    0.70,
    "The FlashAttention 2 paper reports 0.50 to 0.73 on an A100.",
)
CONVOLUTIONS = Assumption(
    "convolutions of the VAE, of the maker's dense bf16 figure",
    0.15,
    0.30,
    0.50,
    "An estimate by hand: three-dimensional convolutions with few channels keep matrix units waiting.",
)
TEXT_ENCODER = Assumption(
    "text encoders, of the maker's dense bf16 figure",
    0.25,
    0.45,
    0.60,
    "An estimate by hand: one text at a time has short matrices.",
)
MEMORY = Assumption(
    "memory of a GPU, of the maker's bandwidth",
    0.65,
    0.80,
    0.90,
    "A copy reaches 0.9; elementwise operations are counted as not fused.",
)
LINKS = Assumption(
    "links between GPUs, of the maker's figure",
    0.55,
    0.75,
    0.85,
    "Large NCCL messages reach 0.8 and more on a quiet network; shared networks reach less.",
)
HOP = Assumption(
    "seconds of a ring message for each further member",
    8e-6,
    4e-6,
    2e-6,
    "An estimate by hand from the latency of NCCL between nodes.",
)
EXPOSED = Assumption(
    "messages of weights that arithmetic does not cover, as a share of what it could cover",
    0.30,
    0.10,
    0.0,
    "An estimate by hand: the first units of a pass have nothing to hide behind, and NCCL takes cores of the GPU.",
)
SCORE = Assumption(
    "seconds of a scorer inside the trainer, for a video",
    1.0,
    0.5,
    0.2,
    "An estimate by hand for a scorer of two billion parameters; several scorers take longer.",
)
DISK = Assumption(
    "bytes per second between a node and its disk: checkpoints, encoders, base weights of the gauge",
    1e9,
    2e9,
    6e9,
    "From network storage (slow) to a local NVMe drive (fast).",
)


@dataclass(frozen=True)
class Assumed:
    """The assumed figures in one case (slow, expected or fast), for one kind of GPU and attention kernel."""

    matrices: float
    attention: float
    convolutions: float
    text_encoder: float
    memory: float
    links: float
    hop: float
    exposed: float
    score_seconds: float
    disk: float

    def share(self, kind: str) -> float:
        """Return the share of the maker's FLOPs per second, 0 to 1, that operations of this kind reach."""
        shares = {"attention": self.attention, "convolutions": self.convolutions}
        return shares.get(kind, self.matrices)


def attention_row(kernel: Kernel, *, wide: bool) -> Assumption:
    """Return the assumption about the speed of an attention kernel.

    Each kernel has a row for `wide` GPUs, whose matrix units FlashAttention 2 cannot fill. Other GPUs have one row for
    all kernels.
    """
    return ATTENTION[kernel] if wide else NARROW_ATTENTION


def kernel_of(backend: str | None) -> Kernel:
    """Return the attention kernel that a recipe's `tuning.attention`, a name of diffusers, leads to.

    It is `chosen` if torch chooses the kernel, as with None.
    """
    name = backend or ""
    if "cudnn" in name:
        return "cudnn"
    if "flash_3" in name:
        return "flash3"
    return "flash" if "flash" in name else "chosen"


def rows(kernel: Kernel, *, wide: bool) -> Iterator[tuple[str, Assumption]]:
    """Yield every assumption of a plan, with the name of its field in `Assumed`."""
    yield "matrices", MATRICES
    yield "attention", attention_row(kernel, wide=wide)
    yield "convolutions", CONVOLUTIONS
    yield "text_encoder", TEXT_ENCODER
    yield "memory", MEMORY
    yield "links", LINKS
    yield "hop", HOP
    yield "exposed", EXPOSED
    yield "score_seconds", SCORE
    yield "disk", DISK


UNMEASURED = ("text_encoder", "disk")  # an iteration's log says nothing of them


def assume(case: Case, kernel: Kernel = "chosen", *, wide: bool = True, calibrated: bool = False) -> Assumed:
    """Return the assumed figures in one case.

    In a calibrated plan, the figures that a run has measured are always at their expected value. Only those of
    `UNMEASURED` depend on the case.
    """

    def value(name: str, row: Assumption) -> float:
        return row.at("expected" if calibrated and name not in UNMEASURED else case)

    return Assumed(**{name: value(name, row) for name, row in rows(kernel, wide=wide)})
