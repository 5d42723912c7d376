"""Flow-Factory through its own trainer: `python -m peers.flow_factory CHECKPOINT PROMPTS FOLDER GUIDANCE`.

Runs in its environment, with its `src` on the path. Its code is as published; on a CPU in float32 it needs one change,
marked below.
"""

import contextlib
import sys

import torch
from flow_factory.hparams import Arguments
from flow_factory.rewards.abc import PointwiseRewardModel, RewardModelOutput
from flow_factory.trainers import load_trainer

from peers import work
from peers.meter import Turns, serve


class Brightness(PointwiseRewardModel):
    required_fields = ("image", "prompt")
    use_tensor_inputs = True  # else every picture takes a way through PIL

    def __call__(self, prompt, image=None, **others):
        return RewardModelOutput(rewards=torch.tensor(work.brightness(torch.stack(image))), extra_info={})


def settings(checkpoint, prompts, folder, guidance):
    return {
        "launcher": "accelerate",
        "num_processes": 1,
        "mixed_precision": "no",
        "data": {
            "dataset_dir": str(prompts),
            "preprocessing_batch_size": work.BATCH,
            "dataloader_num_workers": 0,  # a worker's time would not be seen
            "force_reprocess": True,
            "cache_dir": f"{folder}/cache",
            "sampler_type": "auto",
        },
        "model": {
            "finetune_type": "lora",
            "lora_rank": work.RANK,
            "lora_alpha": work.ALPHA,
            "master_weight_dtype": "fp32",
            "target_modules": list(work.TARGETS),
            "model_name_or_path": str(checkpoint),
            "model_type": "sd3-5",
        },
        "log": {
            "run_name": "peers",
            "project": "peers",
            "logging_backend": "none",
            "save_dir": str(folder),
            "save_freq": 0,
            "verbose": False,
        },
        "train": {
            "trainer_type": "grpo",
            "advantage_aggregation": "sum",
            "clip_range": work.CLIP,
            "kl_type": "v-based",
            "kl_beta": work.KL,
            "ref_param_device": "cpu",
            "resolution": work.SIDE,
            "num_inference_steps": work.STEPS,
            "guidance_scale": guidance,
            "per_device_batch_size": work.BATCH,
            "group_size": work.GROUP,
            "global_std": False,
            "unique_sample_num_per_epoch": len(work.PROMPTS),
            "gradient_step_per_epoch": 1,
            "gradient_accumulation_steps": "auto",
            "max_epochs": -1,
            "learning_rate": work.LEARNING_RATE,
            "adam_weight_decay": 0.0,
            "ema_decay": 0,
            "ema_device": "cpu",
            "enable_gradient_checkpointing": False,
            "latent_storage_dtype": "fp32",
            "seed": work.SEED,
        },
        "scheduler": {
            "dynamics_type": "Flow-SDE",
            "noise_level": work.NOISE,
            "sde_steps": None,  # all but the last; it trains one of them if nothing is said
            "num_sde_steps": None,
            "seed": work.SEED,
        },
        "eval": {"resolution": work.SIDE, "eval_freq": 0},
        "rewards": [
            {
                "name": "brightness",
                "reward_model": "peers.flow_factory.Brightness",
                "batch_size": 16,
                "device": "cpu",
                "dtype": "float32",
            }
        ],
    }


def train(checkpoint, prompts, folder, guidance, words, answers):
    trainer = load_trainer(Arguments.from_dict(settings(checkpoint, prompts, folder, guidance)))
    # It computes in bfloat16 even where its settings say float32; this CPU is slower so, and the others do not.
    trainer.autocast = contextlib.nullcontext
    # Asked before every iteration: the place to take turns.
    trainer.should_continue_training = Turns(trainer.adapter.pipeline.transformer, words, answers).wait
    trainer.start()


if __name__ == "__main__":
    serve(train, *sys.argv[1:4], float(sys.argv[4]))
