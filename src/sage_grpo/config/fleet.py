"""Settings of `sage-grpo serve`: which scorers it runs, with which resources and limits."""

from typing import Any, Self

from pydantic import Field, model_validator

from sage_grpo.config.algorithm import Settings


class ScorerConfig(Settings):
    """Settings of one scorer of `sage-grpo serve`, and of the processes that run this scorer."""

    type: str = Field(description="a built-in reward, or package.module:factory of your own")
    options: dict[str, Any] = Field(default_factory=dict, description="passed to the reward")
    replicas: int = Field(1, ge=1, description="processes that score; the fewest of them if max_replicas is given")
    max_replicas: int | None = Field(None, ge=1, description="more of them while requests wait, up to so many")
    cpus: float = Field(1.0, ge=0, description="of each replica")
    gpus: float = Field(0.0, ge=0, description="of each replica; 0.5 puts two on one GPU")
    batch: int = Field(8, ge=1, description="videos scored in one call, put together from several requests")
    batch_wait: float = Field(0.02, ge=0, description="seconds that a request waits for others to share its call")
    queue: int = Field(64, ge=1, description="requests that wait for a replica; further ones are asked to come again")

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(f"max_replicas={self.max_replicas} is below replicas={self.replicas}; swap them")
        return self


class FleetConfig(Settings):
    """All settings of `sage-grpo serve`: its scorers, its address and its limits."""

    scorers: tuple[ScorerConfig, ...] = Field(min_length=1, description="one or more, each with the keys below")
    host: str = Field("127.0.0.1", description="0.0.0.0 answers other machines too")
    port: int = Field(8900, ge=1, le=65535, description="of the gate")
    token_variable: str = Field("SAGE_GRPO_TOKEN", description="environment variable that holds the bearer token")
    gates: int = Field(1, ge=1, description="processes that check requests and pass them on")
    megabytes: float = Field(1024.0, gt=0, description="largest request")
    videos: int = Field(256, ge=1, description="in one request")
    prompt_characters: int = Field(100_000, ge=1, description="in one prompt")
    seconds: float = Field(120.0, gt=0, description="after which a request is given up")
