"""A recipe: everything a run needs, from the model to the folder it writes."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from sage_grpo.config.algorithm import AlgorithmConfig, Settings

Decay = Annotated[float, Field(ge=0, lt=1)]


class ModelConfig(Settings):
    """Settings of the model that is post-trained, and of the videos that it makes."""

    type: str = Field("shapes", description="a built-in model, or package.module:Class of your own")
    path: str | None = Field(None, description="checkpoint folder or hub name; none means the one that ships")
    revision: str | None = Field(None, description="commit or tag of a hub checkpoint; pin it, so that runs reproduce")
    frames: int | None = Field(None, ge=1, description="of a video; none means the model's own number")
    height: int | None = Field(None, ge=1, description="in pixels; none means the model's own")
    width: int | None = Field(None, ge=1, description="in pixels; none means the model's own")
    guidance_scale: float | None = Field(None, gt=0, description="1 is no guidance; none means the model's own scale")
    guidance_gradient: Literal["both", "conditional"] | None = Field(
        None, description="which branches of the guidance are trained; `conditional` saves a backward pass"
    )
    negative_prompt: str | None = Field(None, description="what guidance leads away from")
    options: dict[str, Any] = Field(default_factory=dict, description="passed to the model")


class TuningConfig(Settings):
    """Settings of which weights are trained, and of how training fits into memory."""

    mode: Literal["full", "lora"] = Field("full", description="all weights, or low-rank adapters on frozen ones")
    rank: int = Field(64, ge=1, description="of the adapters")
    alpha: float | None = Field(None, gt=0, description="adapters are scaled by alpha/rank; none means alpha = rank")
    targets: tuple[str, ...] | None = Field(None, description="layers with adapters; none means the model's list")
    min_sigma: float = Field(
        0.0, ge=0, lt=1, description="adapters act at noise levels of this size or more; below it the base model does"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="bfloat16 computes and keeps frozen weights so; trained ones stay float32"
    )
    device: str = Field("auto", description="auto takes an accelerator if there is one")
    gradient_checkpointing: bool = Field(False, description="recompute activations: less memory, a third more time")
    keep_attention: bool = Field(
        False, description="recompute all but the outputs of attention: less time than without, and more memory"
    )
    guidance: Literal["together", "one-by-one"] = Field(
        "together", description="both branches of guidance in one pass, or in two that need less memory"
    )
    compile: str | None = Field(None, description="backend of torch.compile for the repeated blocks, such as inductor")
    attention: str | None = Field(None, description="attention backend of diffusers, such as flash; none means native")
    offload: bool = Field(False, description="encoders and decoder leave the device while they are not used")
    offload_copies: bool = Field(False, description="full weights: anchor and average wait in the memory of the host")
    vae_tiling: bool = Field(False, description="decode in tiles: less memory, faint seams are possible")
    conditions: str | None = Field(None, description="folder of cached embeddings; none means conditions/ in run.out")
    encode_ahead: bool = Field(
        True, description="encode all prompts before training, which then needs no encoders in memory"
    )

    @model_validator(mode="after")
    def _check_min_sigma(self) -> "TuningConfig":
        if self.min_sigma and self.mode != "lora":
            raise ValueError("min_sigma switches adapters off, and there are none; set mode=lora or min_sigma=0")
        if self.min_sigma and self.compile:
            raise ValueError("min_sigma and compile exclude each other: each switch would compile the blocks again")
        return self

    @model_validator(mode="after")
    def _check_recomputation(self) -> "TuningConfig":
        if self.keep_attention and not self.gradient_checkpointing:
            raise ValueError("keep_attention says what gradient_checkpointing does not recompute; set that to true")
        if self.keep_attention and self.compile:
            raise ValueError("keep_attention and compile exclude each other: torch compiles no block inside it")
        if self.keep_attention and self.attention and "flex" in self.attention:
            raise ValueError("keep_attention cannot see the kernel of attention=flex; choose another, or leave it out")
        return self


class ParallelConfig(Settings):
    """The number of processes that a run has, and how they divide videos and weights."""

    processes: int = Field(1, ge=1, description="GPUs in all")
    sequence: int = Field(1, ge=1, description="GPUs that share the tokens of one video")
    ring: int = Field(1, ge=1, description="of those, GPUs in a ring; the others trade heads (Ulysses)")
    replicate: int = Field(1, ge=1, description="copies of the weights, each sharded over an equal part of the GPUs")

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.sequence % self.ring:
            fits = max(n for n in range(1, self.ring + 1) if self.sequence % n == 0)
            raise ValueError(f"ring={self.ring} does not divide sequence={self.sequence}; use ring={fits}")
        unit = self.sequence * self.replicate
        if self.processes % unit:
            near = max(round(self.processes / unit), 1) * unit
            fits = max(n for n in range(1, self.replicate + 1) if n == 1 or self.processes % (self.sequence * n) == 0)
            other = f" or replicate={fits}" if self.processes % self.sequence == 0 else ""
            raise ValueError(
                f"sequence={self.sequence} × replicate={self.replicate} does not divide processes={self.processes}; "
                f"use processes={near}{other}"
            )
        return self

    @property
    def replicas(self) -> int:
        """The number of replicas: groups of `sequence` GPUs, each of which makes videos of its own."""
        return self.processes // self.sequence


class RewardConfig(Settings):
    """Settings of one scorer in the list under `rewards` or `monitors`."""

    type: str = Field(description="a built-in reward, or package.module:factory of your own")
    weights: dict[str, float] | str = Field(
        default_factory=dict, description="by name of the score, 1 where none is given; or the name of a preset"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="passed to the reward")


class PromptsConfig(Settings):
    """Settings of the prompts: the texts that videos are made from."""

    path: str | None = Field(None, description="txt, jsonl, csv or parquet; none means the model's own prompts")
    column: str = Field("prompt", description="of the text, in files with columns")
    shuffle: bool = Field(True, description="another order in each pass over the prompts, by the seed")


class OptimizerConfig(Settings):
    """Settings of the optimizer, which changes the weights by their gradients."""

    type: Literal["adamw", "muon"] = Field("adamw", description="muon for matrices, with adamw for the rest")
    lr: float = Field(
        1e-5, gt=0, le=10, description="learning rate, constant; adapters take about ten times that of all weights"
    )
    betas: tuple[Decay, Decay] = Field((0.9, 0.999), description="decay of AdamW's two averages")
    weight_decay: float = Field(0.0, ge=0, le=100, description="pull of the weights towards 0")
    ema: float | None = Field(None, gt=0, lt=1, description="decay of an average of the weights; sampled and exported")


class RunConfig(Settings):
    """Settings of the length of a run, and of the files that it writes."""

    out: str = Field("runs/latest", description="folder of the run")
    iterations: int = Field(100, ge=1, description="rollouts in all, each with its updates")
    resume: Literal["auto", "never"] = Field("auto", description="`auto` continues from the newest whole checkpoint")
    save_every: int = Field(10, ge=1, description="iterations between checkpoints")
    keep: int = Field(2, ge=1, description="newest checkpoints kept; older ones are removed")
    keep_every: int | None = Field(
        None, ge=1, description="iterations between checkpoints that are saved and never removed; none keeps no others"
    )
    checkpoints: str | None = Field(None, description="a folder or s3://bucket/folder; none means run.out/checkpoints")
    check_gpus: bool = Field(
        False, description="measure the device and link of every process at the start, and name the slow ones"
    )
    hang_minutes: float = Field(
        30.0, ge=0, description="without progress for so long a run ends with the stacks of all processes; 0 for never"
    )
    sample_every: int = Field(25, ge=0, description="sample videos at fixed seeds; 0 for none")
    samples: int = Field(6, ge=1, description="prompts of the sample videos")
    samples_each: int = Field(1, ge=1, description="videos of each of them; the monitor `diversity` needs two")
    sample_steps: int | None = Field(None, ge=1, description="steps of the sample videos; none means sampling.steps")
    sample_frames: int | None = Field(None, ge=1, description="of the sample videos; none means those of training")
    sample_height: int | None = Field(None, ge=1, description="of the sample videos; none means that of training")
    sample_width: int | None = Field(None, ge=1, description="of the sample videos; none means that of training")
    imports: tuple[str, ...] = Field(
        (), description="modules that register kernels, objectives, models, rewards or trackers of your own"
    )
    trackers: tuple[str, ...] = Field(
        ("tensorboard",), description="besides metrics.jsonl: tensorboard, wandb, trackio, or one of your own"
    )

    @property
    def sample_size(self) -> dict[str, int]:
        """The sizes of sample videos that the recipe sets, out of `frames`, `height` and `width`.

        Sizes that the recipe does not set are those of training.
        """
        size = {"frames": self.sample_frames, "height": self.sample_height, "width": self.sample_width}
        return {name: value for name, value in size.items() if value is not None}


class GaugeConfig(Settings):
    """Limits of the drift gauge, relative to the start of the run. Crossing a limit warns or stops the run."""

    every: int = Field(5, ge=0, description="iterations between measurements; 0 for none")
    action: Literal["warn", "stop"] = Field("warn", description="what crossing a limit does to the run")
    kl_initial: float | None = Field(None, gt=0, description="largest KL to the initial policy")
    base_error: float = Field(1.5, gt=1, description="largest ratio of the base model's error on the policy's videos")
    diversity: float = Field(0.5, ge=0, lt=1, description="smallest share of the diversity within a group")
    saturation: float = Field(0.15, gt=0, description="largest rise of the share of black or white pixels")
    exposure: float = Field(0.15, gt=0, description="largest change of mean brightness, of the full range")
    motion: float = Field(0.4, ge=0, lt=1, description="smallest share of the change from frame to frame")
    clipping: float = Field(0.05, gt=0, description="largest rise of the share of a sound's samples at full scale")
    loudness: float = Field(0.1, ge=0, lt=1, description="smallest share of the loudness of a sound")


class RecipeConfig(AlgorithmConfig):
    """All settings of a run, frozen and validated. Use `load_recipe` to make such an object.

    Examples:
        >>> from sage_grpo import load_recipe
        >>> load_recipe("lab").sampling.kernel
        'sage'
    """

    model: ModelConfig = Field(ModelConfig(), description="what is post-trained")
    rewards: tuple[RewardConfig, ...] = Field((), description="scorers whose weighted sum is trained on")
    monitors: tuple[RewardConfig, ...] = Field((), description="scores of the sample videos, never trained on")
    prompts: PromptsConfig = Field(PromptsConfig(), description="the texts that videos are made from")
    tuning: TuningConfig = Field(TuningConfig(), description="what is trained, and how it fits into memory")
    parallel: ParallelConfig = Field(ParallelConfig(), description="the processes that the recipe is laid out for")
    optimizer: OptimizerConfig = Field(OptimizerConfig(), description="how a gradient moves the weights")
    run: RunConfig = Field(RunConfig(), description="how long, and what is written where")
    gauge: GaugeConfig = Field(GaugeConfig(), description="limits of drift")

    @model_validator(mode="after")
    def _rollouts_divide(self) -> Self:
        self.check_layout(self.parallel.replicas)
        return self

    @model_validator(mode="after")
    def _check_min_sigma(self) -> Self:
        if self.tuning.min_sigma and self.policy.points:
            raise ValueError(
                f"objective {self.policy.objective} trains at all noise levels, so adapters must act at all of them; "
                "use tuning.min_sigma=0"
            )
        if self.tuning.min_sigma and self.kl.outside_weight:
            raise ValueError(
                "tuning.min_sigma and kl.outside_weight both hold the noise levels that no step trains; set "
                "kl.outside_weight=0 or tuning.min_sigma=0"
            )
        return self
