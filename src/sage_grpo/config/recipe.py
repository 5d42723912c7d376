"""A recipe: everything a run needs, from the model to the folder it writes."""

from typing import Any, Literal

from pydantic import Field

from sage_grpo.config.algorithm import AlgorithmConfig, Settings


class ModelConfig(Settings):
    type: str = Field("shapes", description="a built-in model, or package.module:factory of your own")
    path: str | None = Field(None, description="checkpoint folder; none means the one that ships with the model")
    options: dict[str, Any] = Field(default_factory=dict, description="passed to the model")


class RewardConfig(Settings):
    type: str = Field(description="a built-in reward, or package.module:factory of your own")
    weights: dict[str, float] = Field(default_factory=dict, description="by name of the score; 1 where none is given")
    options: dict[str, Any] = Field(default_factory=dict, description="passed to the reward")


class PromptsConfig(Settings):
    path: str | None = Field(None, description="txt, jsonl, csv or parquet; none means the model's own prompts")
    column: str = "prompt"
    shuffle: bool = True


class OptimizerConfig(Settings):
    lr: float = Field(1e-5, gt=0)
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(0.0, ge=0)
    ema: float | None = Field(None, gt=0, lt=1, description="decay of an average of the weights; sampled and exported")


class RunConfig(Settings):
    out: str = Field("runs/latest", description="folder of the run")
    iterations: int = Field(100, ge=1)
    resume: Literal["auto", "never"] = Field("auto", description="`auto` goes on from the newest whole checkpoint")
    save_every: int = Field(10, ge=1)
    keep: int = Field(2, ge=1, description="checkpoints kept")
    sample_every: int = Field(25, ge=0, description="sample videos at fixed seeds; 0 for none")
    samples: int = Field(6, ge=1)
    trackers: tuple[str, ...] = Field(
        ("tensorboard",), description="besides metrics.jsonl: tensorboard, wandb, trackio"
    )


class GaugeConfig(Settings):
    """Limits are relative to the start of the run; crossing one warns or stops."""

    every: int = Field(5, ge=0, description="iterations between measurements; 0 for none")
    action: Literal["warn", "stop"] = "warn"
    kl_initial: float | None = Field(None, gt=0, description="largest KL to the initial policy")
    base_error: float = Field(1.5, gt=1, description="largest ratio of the base model's error on the policy's videos")
    diversity: float = Field(0.5, ge=0, lt=1, description="smallest share of the diversity within a group")
    saturation: float = Field(0.15, gt=0, description="largest rise of the share of black or white pixels")
    exposure: float = Field(0.15, gt=0, description="largest change of mean brightness, of the full range")
    motion: float = Field(0.4, ge=0, lt=1, description="smallest share of the change from frame to frame")


class RecipeConfig(AlgorithmConfig):
    model: ModelConfig = ModelConfig()
    rewards: tuple[RewardConfig, ...] = ()
    prompts: PromptsConfig = PromptsConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    run: RunConfig = RunConfig()
    gauge: GaugeConfig = GaugeConfig()
