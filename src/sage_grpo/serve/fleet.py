"""A fleet on Ray Serve: a gate that answers HTTP, and for each scorer as many replicas as the configuration says.

Trainers and gate exchange JSON and safetensors. Inside the cluster, Ray moves the same bytes in its own format, which
trusts every machine of the cluster: keep Ray's ports closed to others.
"""

import asyncio
import logging
import os
import re
import socket
import traceback
from collections.abc import Sequence
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.config import AutoscalingConfig, HTTPOptions
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from sage_grpo.config import ConfigError, FleetConfig, RewardConfig, ScorerConfig
from sage_grpo.errors import UserError
from sage_grpo.rewards.remote.wire import Limits
from sage_grpo.serve.gate import Ask, Busy, Gate, LooksAt, ScorerEndpoint, fingerprint
from sage_grpo.serve.scorer import Scorer
from sage_grpo.training import build

APPLICATION = "rewards"
RESERVE = 100  # requests that a process has under way before others wait
PATIENCE = "60"  # seconds in which a proxy must be ready; Ray's own 5 end it again and again on a busy machine


class FleetError(UserError, RuntimeError):
    """Raised when the fleet cannot be started."""


def limits_of(config: FleetConfig) -> Limits:
    return Limits(megabytes=config.megabytes, videos=config.videos, prompt=config.prompt_characters)


def deployment_name(kind: str) -> str:
    return kind.replace(":", ".")


def scorer_deployment(entry: ScorerConfig, config: FleetConfig) -> Any:
    """Return the Ray Serve deployment of one scorer. Each of its replicas combines several requests into one call."""

    class Replica:
        def __init__(self) -> None:
            reward = build.build_reward(RewardConfig(type=entry.type, options=entry.options))
            self.scorer = Scorer(reward, entry.batch, config.seconds, limits_of(config))

        async def about(self) -> tuple[list[str], bool, bool]:
            return list(self.scorer.names), self.scorer.groupwise, self.scorer.uses_audio

        async def frame_indices(self, frames: int) -> Sequence[int] | None:
            return self.scorer.frame_indices(frames)

        @serve.batch(  # type: ignore[untyped-decorator]
            max_batch_size=entry.batch,
            batch_wait_timeout_s=entry.batch_wait,
            batch_size_fn=lambda items: sum(min(count, entry.batch) for count, _ in items),
        )
        async def score(self, items: list[tuple[int, bytes]]) -> list[bytes | Exception]:
            return await asyncio.to_thread(self.scorer.answer, [body for _, body in items])

        def check_health(self) -> None:
            self.scorer.check_health()

    options: dict[str, Any] = {
        "ray_actor_options": {"num_cpus": entry.cpus, "num_gpus": entry.gpus},
        "max_ongoing_requests": 2 * entry.batch,  # one call's worth waits while another is scored
        "max_queued_requests": entry.queue,
        "health_check_period_s": 2.0,
        "health_check_timeout_s": 30.0,
        "graceful_shutdown_timeout_s": 5.0,
    }
    if entry.max_replicas is None:
        options["num_replicas"] = entry.replicas
    else:
        options["autoscaling_config"] = AutoscalingConfig(
            min_replicas=entry.replicas, max_replicas=entry.max_replicas, target_ongoing_requests=entry.batch
        )
    return serve.deployment(Replica, name=deployment_name(entry.type), **options).bind()


def is_gone(error: Exception) -> bool:
    """Return whether the error means that a replica died or is too busy, so that the request can be sent again.

    It is False if the scorer itself failed.
    """
    gone = (RayActorError, BackPressureError, DeploymentUnavailableError)
    return isinstance(error, gone) and not isinstance(error, RayTaskError)


async def call(method: Any, *arguments: Any) -> Any:
    try:
        return await method.remote(*arguments)
    except Exception as error:
        if is_gone(error):
            raise Busy(f"{type(error).__name__}: the scorer is not there or too busy") from error
        raise


def gate_deployment(config: FleetConfig, token: str) -> Any:
    """Return the Ray Serve deployment of the gate, which answers HTTP, with the deployments of all scorers.

    `token` is the fingerprint of the token that requests must carry.
    """
    scorers = {entry.type: scorer_deployment(entry, config) for entry in config.scorers}
    limits, seconds, types = limits_of(config), config.seconds, list(scorers)

    def make_app() -> Any:  # in the gate's own process
        async def find() -> dict[str, ScorerEndpoint]:
            handles = {t: serve.get_deployment_handle(deployment_name(t), app_name=APPLICATION) for t in types}
            replies = {t: await call(handle.about) for t, handle in handles.items()}
            return {
                t: ScorerEndpoint(names, group, asking(handles[t]), looking(handles[t]), uses_audio)
                for t, (names, group, uses_audio) in replies.items()
            }

        return Gate(token, limits, seconds, find).app

    options = {"num_replicas": config.gates, "ray_actor_options": {"num_cpus": 0}, "max_ongoing_requests": RESERVE}
    return serve.deployment(serve.ingress(make_app)(), name="gate", **options).bind(*scorers.values())


def asking(handle: Any) -> Ask:
    async def ask(body: bytes, count: int) -> bytes:
        answer: bytes = await call(handle.score, (count, body))
        return answer

    return ask


def looking(handle: Any) -> LooksAt:
    async def look(frames: int) -> Sequence[int] | None:
        numbers: Sequence[int] | None = await call(handle.frame_indices, frames)
        return numbers

    return look


def check(config: FleetConfig) -> str:
    """Refuse a fleet that cannot run, before anything is started, and return the fingerprint of its token.

    Raises:
        ConfigError: A scorer appears twice, a scorer is unknown, or the environment variable of the token is not set.
    """
    types = [entry.type for entry in config.scorers]
    twice = {name for name in types if types.count(name) > 1}
    if twice:
        raise ConfigError(f"scorers: {sorted(twice)[0]} stands twice; raise its replicas instead")
    for entry in config.scorers:
        build.find_reward(RewardConfig(type=entry.type, options=entry.options))
    token = os.environ.get(config.token_variable, "")
    if not token:
        raise ConfigError(
            f"the environment variable {config.token_variable} is not set: a fleet answers those who know its token. "
            f"export {config.token_variable}=$(python -c 'import secrets; print(secrets.token_hex(32))')"
        )
    return fingerprint(token)


def start(config: FleetConfig, address: str | None = None) -> str:
    """Start the fleet on this machine or on the Ray cluster at `address`, wait until it answers, and return its URL."""
    token = check(config)
    if address is None:
        check_port(config)
    logging.getLogger("ray").setLevel(logging.ERROR)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", PATIENCE)  # processes of a Ray started here read it
    start_ray(address)
    check_room(config)
    quiet = {"log_level": "ERROR", "enable_access_log": False}
    start_proxies(config, everywhere=address is not None, logging_config=quiet)
    try:
        serve.run(gate_deployment(config, token), name=APPLICATION, route_prefix="/", logging_config=quiet)
    except (RuntimeError, TimeoutError) as error:
        raise FleetError(f"the scorers do not start: {_last_words() or error}") from error
    return f"http://{config.host}:{config.port}"


def start_ray(address: str | None, tries: int = 3) -> None:
    """Connect to the Ray cluster at `address`, or start Ray on this machine, in at most `tries` attempts.

    Ray gives its own processes 30 seconds to start, which a busy machine does not always keep.
    """
    for left in reversed(range(tries)):
        try:
            ray.init(
                address=address or "local",
                include_dashboard=False if address is None else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
                namespace="sage-grpo",
            )
            return
        except Exception as error:  # Ray raises plain exceptions of any kind
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            if address is not None:
                fix = "leave --address out to start it here"
                raise FleetError(f"Ray does not answer at {address}: {reason}; {fix}") from error
            if left == 0 or "timed out" not in reason:
                fix = "`ray stop` ends one that is left; look into /tmp/ray/session_latest/logs"
                raise FleetError(f"Ray does not start on this machine: {reason}; {fix}") from error
            _end_half_started(error)


def _end_half_started(error: Exception) -> None:
    """End the processes of a Ray that did not start in time. Ray itself forgets them until this program ends."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        kill = getattr(frame.f_locals.get("self"), "kill_all_processes", None)  # Ray's own object of this machine
        if kill is not None:
            kill(check_alive=False, allow_graceful=False)


def start_proxies(config: FleetConfig, everywhere: bool, logging_config: dict[str, Any], tries: int = 3) -> None:
    """Start the controller of Ray Serve and its HTTP proxies, on every machine of the cluster or only on this one.

    Ray waits a minute for the proxies. A further try, of at most `tries`, finds the proxies that came up meanwhile.
    """
    for left in reversed(range(tries)):
        try:
            serve.start(
                proxy_location="EveryNode" if everywhere else "HeadOnly",
                http_options=HTTPOptions(host=config.host, port=config.port, request_timeout_s=config.seconds + 10),
                logging_config=logging_config,
            )
            return
        except (RayActorError, TimeoutError) as error:
            if left == 0:
                reason = next(iter(str(error).splitlines()), type(error).__name__)
                raise FleetError(
                    f"Ray Serve does not listen on {config.host}:{config.port} after {tries} tries: {reason}; is the "
                    "machine busy? Look into /tmp/ray/session_latest/logs/serve"
                ) from error


def check_port(config: FleetConfig) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((config.host, config.port))
        except OSError as error:
            raise FleetError(
                f"{config.host}:{config.port} cannot be used ({error.strerror}); end what answers there, or give "
                "another port"
            ) from error


def check_room(config: FleetConfig) -> None:
    """Refuse scorers that need more CPUs or GPUs than the cluster has: Ray would wait for them for ever."""
    has = ray.cluster_resources()
    for kind, field in (("CPU", "cpus"), ("GPU", "gpus")):
        needed = sum(getattr(entry, field) * entry.replicas for entry in config.scorers)
        if needed > has.get(kind, 0.0):
            raise FleetError(
                f"the scorers want {needed:g} {kind}s and the cluster has {has.get(kind, 0.0):g}; lower replicas or "
                f"{field} of a scorer (fractions share one), or add machines"
            )


def _last_words() -> str:
    """Return the name of a scorer that failed to start, with its error message; empty if no scorer failed."""
    for name, state in serve.status().applications[APPLICATION].deployments.items():
        errors = [line for line in state.message.splitlines() if re.match(r"[\w.]+: ", line)]
        if state.status == "DEPLOY_FAILED" and errors:
            kind, _, text = errors[-1].partition(": ")
            return f"{name}: {text}" if kind.startswith("sage_grpo.") else f"{name}: {errors[-1]}"
    return ""


def replicas() -> dict[str, int]:
    """Return the number of running replicas of each deployment, by name."""
    states = serve.status().applications[APPLICATION].deployments
    return {name: int(state.replica_states.get("RUNNING", 0)) for name, state in states.items()}


def stop(address: str | None = None) -> None:
    """Stop the fleet. A Ray cluster at `address` continues to run; a Ray that was started here ends too."""
    if address is not None and ray.is_initialized():
        serve.delete(APPLICATION)
    ray.shutdown()
