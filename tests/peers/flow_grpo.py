"""flow_grpo through its own script: `python -m peers.flow_grpo CHECKPOINT PROMPTS FOLDER GUIDANCE`.

Runs in its environment, with its checkout on the path. Its code is as published; what is changed in memory for a
single process without GPU and network is marked below.
"""

import importlib.util
import sys
import types
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest.mock import MagicMock

import flow_grpo.rewards
from peft import PeftModel
from torch.utils.data import DataLoader

from peers import work
from peers.meter import Turns, serve


def load(path):
    """A file of the checkout that is no part of its package."""
    root = Path(flow_grpo.rewards.__file__).parents[1]
    spec = importlib.util.spec_from_file_location(Path(path).stem, root / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def settings(checkpoint, prompts, folder, guidance):
    config = load("config/base.py").get_config()
    config.seed, config.resolution, config.mixed_precision = work.SEED, work.SIDE, "no"
    config.pretrained.model, config.dataset = str(checkpoint), str(prompts)
    config.logdir = config.save_dir = str(folder)
    config.prompt_fn, config.reward_fn = "general_ocr", {"jpeg_compressibility": 1.0}
    config.eval_freq = config.save_freq = 10**6
    sample, train = config.sample, config.train
    sample.num_steps, sample.eval_num_steps, sample.guidance_scale = work.STEPS, 1, guidance
    sample.noise_level, sample.global_std = work.NOISE, False
    sample.train_batch_size = sample.test_batch_size = train.batch_size = work.BATCH
    sample.num_image_per_prompt = work.GROUP
    sample.num_batches_per_epoch = train.gradient_accumulation_steps = len(work.PROMPTS) * work.GROUP // work.BATCH
    train.timestep_fraction = 0.99  # as in its own settings: all steps but the last
    train.cfg, train.beta, train.ema = guidance > 1, work.KL, False
    train.learning_rate, train.clip_range, train.adam_weight_decay = work.LEARNING_RATE, work.CLIP, 0.0
    return config


def reward():
    """In place of one that it knows by name."""

    def score(images, prompts, metadata):
        return work.brightness(images), {}

    return score


class NoFurtherRoundError(Exception):
    """Its loop has no end."""


def in_turns(made, words, answers):
    """In place of its progress bars, which would take time: the one of the rollouts is asked for in each iteration."""
    turns = []

    def bar(items, desc, **others):
        if desc.endswith(": sampling"):
            if not turns:
                turns.append(Turns(made[0].get_base_model(), words, answers))
            if not turns[0].wait():
                raise NoFurtherRoundError
        return items

    return bar


def train(checkpoint, prompts, folder, guidance, words, answers):
    # It always logs to Weights & Biases, which wants an account.
    sys.modules["wandb"] = MagicMock(__spec__=ModuleSpec("wandb", None))
    script, config = load("scripts/train_sd3.py"), settings(checkpoint, prompts, folder, guidance)
    script.FLAGS = types.SimpleNamespace(config=config)  # its own are read from the command line
    flow_grpo.rewards.jpeg_compressibility = reward
    # Under one process nothing wraps the network, yet it asks for what is wrapped.
    PeftModel.module = property(lambda network: network)
    # A worker's time would not be seen.
    script.DataLoader = lambda *args, **others: DataLoader(*args, **others | {"num_workers": 0})
    # It cuts texts at 128 tokens where the others keep 256.
    embed, tokens = script.compute_text_embeddings, {"max_sequence_length": work.TEXT_TOKENS}
    script.compute_text_embeddings = lambda *args, **others: embed(*args, **others | tokens)
    # What it trains is known to its `main` alone, so it is seen where it is made.
    make, made = script.get_peft_model, []
    script.get_peft_model = lambda *args: made.append(make(*args)) or made[-1]
    script.tqdm = in_turns(made, words, answers)
    pipeline = script.StableDiffusion3Pipeline
    configure = pipeline.set_progress_bar_config
    pipeline.set_progress_bar_config = lambda pipe, **others: configure(pipe, **others | {"disable": True})
    with suppress(NoFurtherRoundError):
        script.main(None)


if __name__ == "__main__":
    serve(train, *sys.argv[1:4], float(sys.argv[4]))
