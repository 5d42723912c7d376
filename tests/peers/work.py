"""The work that all frameworks are given: the same numbers for each, in nobody's words.

Two of them are what flow_grpo's script fixes: the rank and scale of the adapters, and a batch that holds whole groups.
"""

PROMPTS = ("a red ball on a table", "a blue dog in the rain")
GROUP = 4  # pictures of a prompt
BATCH = 4  # pictures in a pass, in rollout and training alike
STEPS = 10  # of a rollout; all but the last are trained
SIDE = 32  # pixels
TEXT_TOKENS = 256  # of T5, beside CLIP's 77
GUIDANCE = 4.5
NOISE = 0.7
RANK, ALPHA = 32, 64
TARGETS = tuple(
    f"attn.{layer}"
    for layer in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
)
LEARNING_RATE = 1e-4
CLIP = 1e-4
KL = 1e-3
SEED = 42


def expected(guidance):
    """Rows of the transformer in an iteration, by hand."""
    pictures, branches = len(PROMPTS) * GROUP, 2 if guidance > 1 else 1
    trained = pictures * (STEPS - 1) * branches
    return {"rollout": pictures * STEPS * branches, "reference": trained, "training": trained, "backward": trained}


def brightness(pictures):
    """The reward: cheap, and different for each picture. Its unit does not matter to a group."""
    return pictures.flatten(1).float().mean(1).tolist()
