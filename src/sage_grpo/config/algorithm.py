"""The settings of the algorithm: sampling, update of the policy, and KL.

Defaults are those of the reference implementation. Names are those of TRL if TRL has the setting.
"""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

LARGEST_SEED = 2**63 - 1  # generators take 64 bits, and some seeds are this one and a few more


class Settings(BaseModel):
    """The base class of all sections of settings. Its objects are frozen, and an unknown key raises an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _readable(cls, value: Any) -> Any:
        if isinstance(value, str) and "\0" in value:
            raise ValueError("holds a NUL character, which no path or name can have; leave it out")
        return value


class WindowConfig(Settings):
    """Which steps of a rollout are stochastic and trained on. Outside the window the sampler is the plain ODE."""

    size: int | None = Field(None, ge=1, description="steps of a window; none means all of its range")
    range: tuple[float, float] = Field(
        (0.0, 1.0),
        description="what a window may cover, as a share of the stochastic steps: from noise (0) to data (1)",
    )
    start: int | Literal["random", "progressive"] = Field(
        "random", description="its first step; `progressive` goes from noise to data, and begins again"
    )
    every: int = Field(10, ge=1, description="iterations until a progressive window moves on by a step")
    per: Literal["iteration", "prompt"] = Field(
        "iteration", description="what shares a random window; `prompt` covers more steps in an iteration"
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        low, high = self.range
        if not 0 <= low < high <= 1:
            raise ValueError(f"range={list(self.range)}: use two shares in rising order, such as [0, 0.5]")
        if self.per == "prompt" and self.start != "random":
            raise ValueError(f"per=prompt draws a window for each prompt, but start={self.start}; use start=random")
        return self


class SamplingConfig(Settings):
    """Settings of a rollout, which turns noise into a video."""

    kernel: str = Field("sage", description="SDE of the rollout; `sage-grpo explain` shows them all")
    eta: float = Field(0.5, ge=0, le=100, description="exploration noise; 0 is the plain ODE")
    steps: int = Field(20, ge=1, le=10_000, description="steps from noise to video")
    shift: float = Field(5.0, gt=0, le=1000, description="above 1 spends more steps at high noise")
    order: Literal[1, 2] = Field(
        1, description="2 extrapolates the clean estimate: steps without noise, and `precise`, need half as many"
    )
    last_step: Literal["ode", "kernel"] = Field(
        "ode", description="`ode` ends without noise; `kernel` leaves the kernel's own in the video"
    )
    window: WindowConfig = Field(WindowConfig(), description="which steps are stochastic")
    tail: float = Field(1.0, gt=0, le=1, description="share of the steps after a window that are taken, longer ones")
    shared_initial_noise: bool = Field(True, description="one initial noise for a whole group")

    @model_validator(mode="after")
    def _window_fits(self) -> Self:
        window, usable = self.window, len(self.window_range)
        if not usable:
            raise ValueError(f"window.range={list(window.range)} covers no step of {self.stochastic_steps}; widen it")
        if self.window_size > usable:
            raise ValueError(f"window.size={window.size} exceeds the {usable} stochastic steps; use {usable}")
        starts = self.window_starts
        if isinstance(window.start, int) and window.start not in starts:
            raise ValueError(f"window.start={window.start} does not fit; use {starts[0]} to {starts[-1]}")
        return self

    @property
    def stochastic_steps(self) -> int:
        return max(self.steps - (self.last_step == "ode"), 1)

    @property
    def window_range(self) -> range:
        """The indices of the rollout's steps that a window may cover."""
        first, last = (round(share * self.stochastic_steps) for share in self.window.range)
        return range(first, last)

    @property
    def window_size(self) -> int:
        """The number of steps in a window: the stochastic steps of one rollout."""
        return self.window.size or len(self.window_range)

    @property
    def untrained_steps(self) -> list[int]:
        """The indices of the steps of a whole rollout that no window covers."""
        if not isinstance(self.window.start, int):
            covered = self.window_range
        else:
            covered = range(self.window.start, self.window.start + self.window_size)
        return [step for step in range(self.steps) if step not in covered]

    @property
    def window_starts(self) -> range:
        """The indices of the rollout's steps at which a window may begin."""
        return self.window_range[: len(self.window_range) - self.window_size + 1]


class PolicyConfig(Settings):
    """Settings of how rollouts are made into updates of the policy."""

    prompts_per_iteration: int = Field(
        4, ge=1, description="prompts of one rollout; raise it for what other trainers call gradient accumulation"
    )
    num_generations: int = Field(4, ge=2, description="rollouts of each prompt: the group")
    batch_size: int = Field(2, ge=1, description="videos in one forward pass, in rollout and replay alike")
    replay_timesteps: int = Field(1, ge=1, description="timesteps of a batch that share one replay pass")
    select: int | None = Field(None, ge=1, description="train on so many best and worst videos of a group; none: all")
    flat_groups: Literal["train", "skip"] = Field(
        "train", description="those whose rewards are alike: `train` holds them by the KL, `skip` saves their passes"
    )
    num_iterations: int = Field(1, ge=1, description="passes over each rollout")
    num_minibatches: int = Field(1, ge=1, description="optimizer updates in a pass: the timesteps are split")
    timestep_fraction: float = Field(1.0, gt=0, le=1, description="share of the stochastic steps trained on")
    permute_timesteps: bool = Field(True, description="train on the timesteps in random order")
    objective: str = Field(
        "grpo", description="the loss of a video at a point, by its name on the page about objectives"
    )
    objective_settings: dict[str, float] = Field({}, description="of the objective, by name")
    points: int | None = Field(
        None,
        ge=1,
        description="noise levels for each video, for an objective that adds fresh noise; none for the others",
    )
    clip: float | None = Field(
        None,
        gt=0,
        description="ratios count within 1 ± clip; with the mean reduction they differ from 1 by about 1e-5; none: the "
        "objective's own, 1e-4 for `grpo`",
    )
    advantage_limit: float = Field(5.0, gt=0, description="advantages are cut at ± this")
    reduction: Literal["mean", "sum"] = Field(
        "mean", description="of log-ratio and KL over the elements of a latent; `sum` is the exact density"
    )
    equalizer: bool = Field(True, description="weigh timesteps so that their gradients are alike")
    max_grad_norm: float = Field(1.0, gt=0, description="longer gradients are shortened to this norm")
    reward_weights: tuple[float, ...] | None = Field(None, description="one per score; none means 1 each")
    aggregation: Literal["rewards", "advantages"] = Field(
        "rewards", description="what is weighted and summed: scores, or advantages of each score within its group"
    )
    max_failed_rewards: float = Field(
        0.5, ge=0, le=1, description="largest share that may fail; above it the run stops"
    )

    @property
    def updates_per_rollout(self) -> int:
        return self.num_iterations * self.num_minibatches


class KLConfig(Settings):
    """Settings of the dual trust region, the KL to an anchor and to the rollout policy, and of its weight λ."""

    anchor: Literal["none", "fixed", "moving"] = Field("moving", description="reference of KL(θ‖anchor)")
    ref_model_sync_steps: int = Field(10, ge=1, description="a moving anchor is renewed every N updates")
    anchor_weight: float = Field(1.0, ge=0, description="weight of KL(θ‖anchor)")
    old_weight: float = Field(0.1, ge=0, description="weight of KL(θ‖rollout policy)")
    outside_weight: float = Field(
        0.0,
        ge=0,
        description="penalty on changed velocities at noise levels outside all windows, where nothing else holds them; "
        "λ does not multiply it",
    )
    outside_share: float = Field(0.25, gt=0, le=1, description="share of the videos at which this change is measured")
    estimator: Literal["exact", "sampled"] = Field(
        "exact",
        description="of KL(θ‖rollout policy): in closed form, or estimated from the rollout's steps (Eq. 15); with one "
        "update per rollout, only `sampled` has a gradient",
    )
    decay: float = Field(0.0, ge=0, lt=1, description="what a moving anchor keeps of itself when it is renewed")
    share: float = Field(
        1.0, gt=0, le=1, description="share of the trained steps at which the anchor is evaluated, drawn at random"
    )
    low: float = Field(1e-7, ge=0, description="λ at the start of the warm-up, and its lower bound")
    high: float = Field(1e-5, ge=0, description="upper bound of λ, and its value after the warm-up")
    start: float | None = Field(None, gt=0, description="λ after the warm-up, where feedback begins; none: high")
    warmup: int = Field(100, ge=0, description="updates from low to start; 0 begins there")
    feedback: Literal["none", "proportional", "lagrangian", "paper"] = Field(
        "none",
        description="after the warm-up: `proportional` holds the KL at its target; `lagrangian` is Eq. 42 with its "
        "sign turned, `paper` as printed",
    )
    target: float = Field(0.0, ge=0, description="the KL that feedback steers to")
    history: int = Field(10, ge=1, description="updates whose mean KL the feedback looks at")
    band: float = Field(
        0.5, ge=0, lt=1, description="feedback rests while the KL is within target × (1 ± band); not `proportional`"
    )
    gain: float = Field(
        1.0, gt=0, description="of `proportional`: λ moves by (KL / target)^gain over `history` updates"
    )
    damping: float = Field(
        1.0, ge=0, description="of `proportional`: λ also moves by (KL / KL one update earlier)^damping"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low={self.low} is above high={self.high}; swap them")
        if self.feedback != "none" and self.target == 0:
            raise ValueError(f"feedback={self.feedback!r} needs a target above 0: the KL per update to hold")
        if self.start is not None and not self.low <= self.start <= self.high:
            raise ValueError(f"start={self.start} is outside low={self.low} to high={self.high}; move a bound or start")
        if self.feedback == "proportional":
            self._whole_periods()
        return self

    def _whole_periods(self) -> None:
        """Raise a ValueError if `history` is not a whole number of the anchor's periods.

        Right after a renewal of the anchor the KL is 0, whatever λ is. So feedback needs the mean over whole periods.
        """
        period = self.ref_model_sync_steps if self.anchor == "moving" else 1
        if self.history % period:
            raise ValueError(
                f"history={self.history} is not a multiple of ref_model_sync_steps={period}; the KL is 0 after each "
                f"renewal of the anchor, so feedback needs its mean over whole periods: use history={period}"
            )


class AlgorithmConfig(Settings):
    seed: int = Field(0, ge=0, le=LARGEST_SEED, description="of prompts and noise: the same seed gives the same run")
    sampling: SamplingConfig = Field(SamplingConfig(), description="how a rollout turns noise into a video")
    policy: PolicyConfig = Field(PolicyConfig(), description="how rollouts become an update")
    kl: KLConfig = Field(KLConfig(), description="the dual trust region and its weight λ")

    @model_validator(mode="after")
    def _layout(self) -> Self:
        policy, trained = self.policy, self.trained_steps
        if policy.num_minibatches > trained:
            raise ValueError(f"num_minibatches={policy.num_minibatches} exceeds the {trained} trained timesteps")
        if policy.points is not None:
            self._check_renoised()
        if self.kl.outside_weight and not policy.points and not self.sampling.untrained_steps:
            raise ValueError(
                f"kl.outside_weight={self.kl.outside_weight} holds noise levels that no step trains, but all are "
                "trained; set a sampling.window.range, such as [0, 0.5], or outside_weight to 0"
            )
        if self.sampling.window.per == "prompt" and policy.num_generations % policy.batch_size:
            raise ValueError(
                f"window.per=prompt needs batches of one prompt, but batch_size={policy.batch_size} does not divide "
                f"num_generations={policy.num_generations}; use batch_size={policy.num_generations} or a part of it"
            )
        return self

    def _check_renoised(self) -> None:
        """Raise a ValueError for settings of the rollout that do not suit an objective on renoised videos.

        Such an objective needs rollouts by the plain ODE, in which each video starts from noise of its own.
        """
        sampling, given = self.sampling, f"policy.points={self.policy.points} trains on videos with fresh noise"
        if sampling.eta > 0 and sampling.kernel != "ode":
            raise ValueError(f"{given}: the rollout needs none along its way; use sampling.eta=0")
        if sampling.shared_initial_noise:
            raise ValueError(
                f"{given}: from one initial noise a group's videos would be alike; use "
                "sampling.shared_initial_noise=false"
            )

    def check_layout(self, replicas: int) -> None:
        """Raise a ValueError if the rollouts of an iteration do not divide evenly into `replicas` and batches."""
        chunk, rollouts = replicas * self.policy.batch_size, self.rollouts
        if rollouts % chunk:
            fits = sorted({max(n, 1) * chunk for n in (rollouts // chunk, rollouts // chunk + 1)})
            among = f"{replicas} replicas × batch_size {self.policy.batch_size}"
            if replicas == 1:
                among = f"batches of {self.policy.batch_size} (batch_size)"
            raise ValueError(
                f"prompts_per_iteration × num_generations = {rollouts} rollouts do not divide into {among}; use "
                f"{' or '.join(map(str, fits))} rollouts"
            )

    @property
    def trained_steps(self) -> int:
        """The number of points per video that one pass over the rollouts trains on: steps, or added noise levels."""
        share = self.policy.timestep_fraction
        return max(round(share * (self.policy.points or self.sampling.window_size)), 1)

    @property
    def rollouts(self) -> int:
        return self.policy.prompts_per_iteration * self.policy.num_generations
