"""The whole plan of a recipe on one kind of GPU: memory, work, seconds, and what interruptions cost."""

import math
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache

from sage_grpo.config import RecipeConfig
from sage_grpo.core.passes import trained_videos
from sage_grpo.core.video_model import networks
from sage_grpo.preflight.plan.assumptions import Case, assume, kernel_of
from sage_grpo.preflight.plan.calibration import Calibration
from sage_grpo.preflight.plan.counts import Counts, count
from sage_grpo.preflight.plan.encoding import Encoders, Encoding, encoders_of, encoding
from sage_grpo.preflight.plan.hardware import GPU, PassTime, ProcessGroup, at_roofline, pass_time
from sage_grpo.preflight.plan.interruptions import GPU_HOURS_PER_FAILURE, Saving, best_interval, lost_share
from sage_grpo.preflight.plan.memory import Memory, ModelStates, memory, model_states, video_bytes
from sage_grpo.preflight.plan.probe import Cost, Probe, decoding, probe
from sage_grpo.training import build

START = 300.0  # seconds from a failure until the first iteration runs again
FRACTION = 0.92  # of a GPU's memory that a plan may use: the rest is the allocator's and the driver's
PIXELS = 0.1  # bytes a pixel of compressed sample videos


@dataclass(frozen=True)
class Plan:
    config: RecipeConfig
    gpu: GPU
    gpus: int
    tokens: int
    flops_per_forward: float  # of one video, one branch of guidance
    held: ModelStates
    memory: Memory
    counts: Counts
    seconds: dict[str, float]  # of one iteration, by phase
    passes: dict[str, PassTime]
    repeated: float  # share of a pass that the GPUs of a video each do again: its text is not cut
    moved: dict[str, float]  # bytes of an iteration and process, by purpose
    flops: float  # of an iteration on all GPUs
    saving: Saving
    score_seconds: float
    known: Calibration
    case: Case  # of the assumptions
    convolution: int  # elements of the largest one in decoding
    typical_text: int | None  # tokens of a prompt, if that was assumed
    sample_video: int  # bytes of a decoded sample video
    encoding: Encoding
    attention: tuple[int, ...]  # of a process's largest query: batch, heads, tokens, width
    recomputed: float  # share of a forward pass that backward computes again, if it computes any of it again

    @cached_property
    def slow(self) -> "Plan":
        """The same plan with every assumption at its slow value."""
        return estimate(self.config, self.gpu, self.known, "slow")

    @cached_property
    def fast(self) -> "Plan":
        """The same plan with every assumption at its fast value."""
        return estimate(self.config, self.gpu, self.known, "fast")

    @property
    def videos_per_gpu_hour(self) -> float:
        return self.config.rollouts * 3600 / self.iteration / self.gpus

    @property
    def iteration(self) -> float:
        return sum(self.seconds.values())

    @property
    def between_failures(self) -> float:
        return GPU_HOURS_PER_FAILURE * 3600 / self.gpus

    @property
    def lost(self) -> float:
        """Share of the run's time, 0 to 1, that saves and failures cost with the recipe's `run.save_every`."""
        return lost_share(self.config.run.save_every * self.iteration, self.saving, self.between_failures)

    @property
    def hours(self) -> float:
        return (self.config.run.iterations * self.iteration / (1 - self.lost) + self.encoding.seconds) / 3600

    @property
    def fits(self) -> bool:
        return self.memory.peak <= FRACTION * self.gpu.memory

    @property
    def useful_flops(self) -> float:
        """Floating-point operations of an iteration on all GPUs, without recomputed forward passes."""
        again, counts = self.counts.again * self.recomputed, self.counts
        return self.flops * (1 - again / (counts.forward - counts.again + again + 2 * counts.backward))

    @property
    def mfu(self) -> float:
        """Useful operations per second as a share, 0 to 1, of the peak of all GPUs (model FLOPs utilization)."""
        return self.useful_flops / (self.iteration * self.gpus * self.gpu.flops)

    @property
    def best_save_every(self) -> int:
        return best_interval(self.saving, self.between_failures, self.iteration)


def groups(config: RecipeConfig, gpu: GPU) -> tuple[ProcessGroup, ProcessGroup, ProcessGroup]:
    """Return three groups of processes, by what their members exchange.

    The first exchanges shards of the weights, the second sums of gradients between copies of the weights, and the third
    the tokens of a video. Processes of neighbouring rank share a video.
    """
    layout = config.parallel

    def over(size: int, stride: int) -> ProcessGroup:
        return ProcessGroup(size, min(size, math.ceil(size * stride / gpu.per_node)))

    sharded = layout.processes // layout.replicate
    return over(sharded, 1), over(layout.replicate, sharded), over(layout.sequence, 1)


@lru_cache(maxsize=16)
def _decoding(settings: str) -> Cost | None:
    return decoding(RecipeConfig.model_validate_json(settings))


@lru_cache(maxsize=64)
def _probe(settings: str) -> Probe:
    return probe(RecipeConfig.model_validate_json(settings))


def alone(config: RecipeConfig, batch: int = 1, *, unguided: bool = False) -> RecipeConfig:
    """Return the recipe on one process with `batch` videos, for costs that do not depend on the layout.

    The model is the same. With `unguided`, it has no guidance.
    """
    values = config.model_dump()
    values |= {"parallel": {"processes": 1}, "run": {}}
    values["tuning"] |= {"keep_attention": False}  # of backward alone
    values["policy"] |= {"batch_size": batch, "prompts_per_iteration": batch}
    values["model"] |= {"guidance_scale": 1.0} if unguided else {}
    return RecipeConfig.model_validate(values)


def sampled(config: RecipeConfig) -> RecipeConfig:
    """Return the recipe with its training videos as large as its sample videos."""
    return config.model_copy(update={"model": config.model.model_copy(update=config.run.sample_size)})


def probed(config: RecipeConfig) -> Probe:
    """Return the costs of a recipe's passes, measured on one process of a smaller layout with the same axes.

    The smaller layout has at most two copies of the weights, with at most eight replicas each. A pass depends on which
    processes share videos and weights, hardly on how many do.
    """
    layout, values = config.parallel, config.model_dump()
    replicate = min(layout.replicate, 2)
    shards = min(layout.processes // (layout.replicate * layout.sequence), 8)
    processes = replicate * shards * layout.sequence
    values["parallel"] |= {"processes": processes, "replicate": replicate}
    values["policy"]["prompts_per_iteration"] = processes // layout.sequence * config.policy.batch_size
    values |= {"run": {}, "rewards": (), "monitors": ()}
    return _probe(RecipeConfig.model_validate(values).model_dump_json())


@dataclass(frozen=True)
class Work:
    """The work of an iteration and the memory that it needs, as far as they do not depend on the GPU."""

    guided: bool
    typical_text: int | None
    single: Probe  # one branch of guidance, one video: what people call a forward pass
    passes: Probe
    decoding: Cost | None
    counts: Counts
    held: ModelStates
    memory: Memory
    sample_work: float  # operations of a pass for a sample video, relative to one of training
    sample_video: int  # bytes of it, decoded
    encoders: Encoders
    reads_base: bool  # the gauge reads the checkpoint's weights
    experts: int


@lru_cache(maxsize=128)  # a sweep plans every layout in three cases
def _work(settings: str) -> Work:
    config = RecipeConfig.model_validate_json(settings)
    outline = build.outline_model(config)
    guided = outline.guided
    single = _probe(alone(config, unguided=guided).model_dump_json())
    passes, states = probed(config), model_states(config)
    with outline.resized(**config.run.sample_size):
        sample_video = video_bytes(outline)
    sample = _probe(alone(sampled(config), unguided=guided).model_dump_json())
    decoded = _decoding(alone(config, batch=config.policy.batch_size).model_dump_json())
    one_sided, experts = outline.guidance_gradient == "conditional", len(networks(outline.module))
    counts = count(config, guided, one_sided, experts)
    return Work(
        guided,
        outline.typical_text,
        single,
        passes,
        decoded,
        counts,
        states,
        memory(outline, config, passes, states, decoded),
        sample.forward.flops / single.forward.flops,
        sample_video,
        encoders_of(outline, config),
        bool(config.gauge.every and config.tuning.mode == "full" and outline.resizable),
        experts,
    )


def gauge_reading(config: RecipeConfig, gpu: GPU, states: ModelStates) -> float:
    """Return the bytes of base weights that a node reads from disk for the drift gauge, averaged over iterations.

    A weight has two bytes. The processes of a node read only the shards that they hold.
    """
    shards = config.parallel.processes // config.parallel.replicate
    share = min(gpu.per_node / shards, 1.0)
    return 2 * states.trained * share / config.gauge.every


def estimate(config: RecipeConfig, gpu: GPU, known: Calibration, case: Case = "expected") -> Plan:
    """Return the plan of a recipe on a kind of GPU, with all assumptions at their value in one `case`.

    The cases are slow, expected and fast. `known` is the calibration by a real run; it applies in every case.
    """
    layout, policy = config.parallel, config.policy
    kernel = kernel_of(config.tuning.attention)
    assumed = assume(case, kernel, wide=gpu.wide, calibrated=known.calibrated)
    work = _work(config.model_dump_json())
    single, passes, decoded, counts, states = work.single, work.passes, work.decoding, work.counts, work.held
    sharded, copies, sequence = groups(config, gpu)
    forward = pass_time(passes.forward, gpu, assumed, sharded, copies, sequence)
    # gradients are added up over copies of the weights once an update; those of experts in every pass
    training = pass_time(passes.training, gpu, assumed, sharded, copies, sequence, sums=work.experts > 1)
    last = pass_time(passes.training, gpu, assumed, sharded, copies, sequence)

    videos = config.rollouts // layout.replicas
    batches, branches = videos / policy.batch_size, 2 if work.guided else 1
    decoded_batches = math.ceil(videos / layout.sequence) / policy.batch_size  # dealt out to those that share a video
    per_batch = policy.batch_size * branches * layout.replicas  # videos × branches of a pass on all replicas
    times = {name: value / per_batch for name, value in asdict(counts).items()}
    times["samples"] *= work.sample_work
    trained = trained_videos(config) / policy.batch_size / layout.replicas
    trained *= config.trained_steps * policy.num_iterations / policy.replay_timesteps
    copied = sum(states.by_kind[kind] for kind in ("trained weights", "gradients", "optimizer"))
    updates = policy.num_iterations * policy.num_minibatches
    step = updates * 2 * copied / (assumed.memory * gpu.bandwidth)
    checkpoint = states.checkpoint / layout.processes
    nodes = max(layout.processes // gpu.per_node, 1)
    saving = Saving(checkpoint / gpu.host, states.checkpoint / (assumed.disk * nodes), START)
    rollout, update = known.rollout, known.update
    scoring = assumed.score_seconds if known.score_seconds is None else known.score_seconds
    score = scoring if config.rewards else 0.0
    reading = gauge_reading(config, gpu, states) / assumed.disk if work.reads_base else 0.0
    seconds = {
        "rollout": times["rollout"] * forward.seconds / rollout,
        "decode": decoded_batches * (at_roofline(decoded.operations, gpu, assumed) if decoded else 0.0) / rollout,
        "score": decoded_batches * policy.batch_size * score,
        "anchor": times["anchor"] * forward.seconds / update,
        "old policy": times["old"] * forward.seconds / update,
        "train": ((trained - updates) * training.seconds + updates * last.seconds + step) / update,
        "gauge and samples": (times["gauge"] + times["samples"]) * forward.seconds / rollout + reading,
        "save": saving.stall / config.run.save_every,
    }
    rounds = times["rollout"] + times["anchor"] + times["old"] + times["gauge"] + times["samples"]
    moved = {
        purpose: rounds * passes.forward.sent.get(purpose, 0) + trained * passes.training.sent.get(purpose, 0)
        for purpose in ("weights", "gradients", "tokens")
    }
    moved["checkpoint"] = checkpoint / config.run.save_every
    flops = layout.processes * (rounds * passes.forward.flops + trained * passes.training.flops)
    flops += layout.replicas * batches * (decoded.flops if decoded else 0.0)
    once = single.forward.flops * policy.batch_size * branches
    repeated = max(1 - once / (passes.forward.flops * layout.sequence), 0.0)
    return Plan(
        config,
        gpu,
        layout.processes,
        single.tokens,
        single.forward.flops,
        states,
        work.memory,
        counts,
        seconds,
        {"forward": forward, "training": training},
        repeated,
        moved,
        flops,
        saving,
        score,
        known,
        case,
        decoded.largest if decoded else 0,
        work.typical_text,
        work.sample_video,
        encoding(config, work.encoders, gpu, assumed),
        passes.training.attention,
        1 - passes.forward.flops_of("attention") / passes.forward.flops if config.tuning.keep_attention else 1.0,
    )
