"""The report of a rehearsal on a fake device, and how it passes from its process to the caller as JSON."""

from dataclasses import asdict, dataclass, field
from typing import Any

NOT_SEEN = "values, kernels, NCCL, streams and memory"


@dataclass(frozen=True)
class Row:
    """One line of the program that made the host wait, or moved bytes between host and device."""

    kind: str  # "wait", "to host" or "to device"
    phase: str
    place: str  # FILE:LINE of this project
    inside: str  # FILE:LINE of the library or of your file that it led to
    operation: str
    count: int
    bytes: int


@dataclass
class FakeCudaReport:
    recipe: str
    processes: int = 1
    covered: dict[str, float] = field(default_factory=dict)  # part → seconds
    reduced: list[str] = field(default_factory=list)
    stand_ins: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"ok": not self.errors, "not_seen": NOT_SEEN}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "FakeCudaReport":
        own = {name: values[name] for name in cls.__dataclass_fields__}
        return cls(**own | {"rows": [Row(**row) for row in values["rows"]]})
