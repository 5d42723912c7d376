"""Layouts and objectives of tiny models, for which a plan is held against what really happens."""

from sage_grpo.models import contract
from sage_grpo.registry import resolve_model

ITERATIONS = 4
LONG_TEXT = "a cat sees a dog, and both of them run"  # as many tokens as tiny models take, which is what a plan counts

NOISED = {"eta": 0, "shared_initial_noise": False}


def case(
    kind,
    mode,
    size,
    processes=1,
    *,
    group=4,
    anchor="moving",
    tuning=None,
    layout=None,
    model=None,
    together=1,
    policy=None,
):
    return {
        "kind": kind,
        "size": size,
        "processes": processes,
        "recipe": {
            "model": {"guidance_scale": 3.0, "negative_prompt": LONG_TEXT, **(model or {})},
            "tuning": {"mode": mode, "rank": 4, **(tuning or {})},
            "parallel": {"processes": processes, **(layout or {})},
            "sampling": {"steps": 4, **(NOISED if policy else {})},
            "policy": {
                "prompts_per_iteration": 2,
                "num_generations": group,
                "batch_size": 2,
                "replay_timesteps": together,
                **(policy or {}),
            },
            "kl": {"anchor": anchor, "ref_model_sync_steps": 1},
            "optimizer": {"ema": 0.9 if anchor == "moving" else None},
            "run": {"iterations": ITERATIONS, "sample_every": 0, "trackers": [], "save_every": 100, "resume": "never"},
            "gauge": {"every": 0},
        },
    }


AGAIN, KEPT = {"gradient_checkpointing": True}, {"gradient_checkpointing": True, "keep_attention": True}
HALF, SHARED = {"precision": "bfloat16"}, {"sequence": 2}
CASES = {
    "hunyuan15 full": case("hunyuan15", "full", (17, 64, 64)),
    "hunyuan15 lora": case("hunyuan15", "lora", (17, 64, 64)),
    "hunyuan15 full, 2 shards": case("hunyuan15", "full", (17, 64, 64), 2),
    "hunyuan15 lora, shared video": case("hunyuan15", "lora", (17, 64, 64), 2, tuning=AGAIN, layout=SHARED),
    "hunyuan15 full, shared video, fixed anchor": case(
        "hunyuan15", "full", (9, 64, 64), 2, anchor="fixed", layout=SHARED
    ),
    "wan full, 2 shards, recomputed": case("wan", "full", (17, 48, 48), 2, tuning=AGAIN),
    "wan full, 2 shards, recomputed but for attention": case("wan", "full", (17, 48, 48), 2, tuning=KEPT),
    "wan lora, bf16": case("wan", "lora", (17, 64, 64), 2, tuning=HALF),
    "wan full, groups of 8, no anchor": case("wan", "full", (17, 64, 64), group=8, anchor="none", together=3),
    "wan full, 2 copies of 2 shards": case("wan", "full", (9, 64, 64), 4, layout={"replicate": 2}),
    "wan lora, 33 frames, one branch trained": case(
        "wan", "lora", (33, 64, 64), 2, model={"guidance_gradient": "conditional"}
    ),
    "hunyuan15 full, nft": case("hunyuan15", "full", (17, 64, 64), 2, policy={"objective": "nft", "points": 3}),
    "wan lora, dpo": case("wan", "lora", (17, 64, 64), 2, policy={"objective": "dpo", "points": 3, "select": 1}),
    "hunyuan15 lora, awm": case(
        "hunyuan15", "lora", (17, 64, 64), 2, policy={"objective": "awm", "points": 3, "num_iterations": 2}
    ),
}


def recipe(name, folder):
    """Of a case, with its checkpoint below `folder`."""
    chosen = CASES[name]
    adapter = resolve_model(chosen["kind"])
    path = folder / f"base-{chosen['kind']}"
    if not (path / "model_index.json").exists():
        contract.make_checkpoint(adapter, path)
    frames, height, width = chosen["size"]
    found = {section: dict(values) for section, values in chosen["recipe"].items()}
    found["model"] |= {"type": chosen["kind"], "path": str(path), "options": dict(adapter.tiny_options)}
    found["model"] |= {"frames": frames, "height": height, "width": width}
    found["tuning"]["conditions"] = str(folder / "conditions")
    found["run"]["out"] = str(folder / "runs" / name.replace(" ", "-"))
    return found
