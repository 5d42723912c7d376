"""Checks that each adapter of a diffusers pipeline must pass on its tiny checkpoint: call `check(MyModel)`.

The test suite runs them for every built-in adapter. The reference is the diffusers pipeline itself: with the same
checkpoint, latents, texts and guidance, both must give the same video.
"""

import inspect
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from PIL import Image
from torch import Tensor

from sage_grpo.core.protocols import Prompt
from sage_grpo.core.rollout import keyed_noise, sample, velocity_at
from sage_grpo.math.kernels import kernel_table
from sage_grpo.math.schedule import sigma_schedule
from sage_grpo.models.base import NEGATIVE, DiffusersModel
from sage_grpo.registry import models, resolve_model

STEPS = 3
SCALE = 3.0
TEXTS = ("a red cat runs", 'a shop sign that says "open late"')


def adapters() -> list[type[DiffusersModel]]:
    """Return the classes of all built-in models that adapt a diffusers pipeline."""
    classes = [resolve_model(name) for name in models()]
    return [cls for cls in classes if issubclass(cls, DiffusersModel)]


def make_checkpoint(adapter: type[DiffusersModel], folder: str | Path) -> str:
    """Save the adapter's tiny pipeline into `folder`, laid out like a real checkpoint, and return the folder's path."""
    adapter.tiny().save_pretrained(str(folder))
    return str(folder)


def load(adapter: type[DiffusersModel], folder: str, *, guided: bool = True, **settings: Any) -> Any:
    frames, height, width = adapter.tiny_size
    defaults = {"frames": frames, "height": height, "width": width, **adapter.tiny_options}
    defaults |= {"guidance_scale": SCALE if guided else 1.0, "negative_prompt": "blurry"}
    return adapter.from_pretrained(folder, **(defaults | settings))


def prompts_for(model: DiffusersModel) -> list[Prompt]:
    colours = [(200, 40, 40), (30, 90, 200)]
    size = (model.width, model.height)
    images = [Image.linear_gradient("L").convert("RGB").resize(size) for _ in colours]
    for image, colour in zip(images, colours, strict=True):
        image.paste(colour, (0, 0, size[0] // 2, size[1] // 2))
    columns = [{"image": image} for image in images] if model.needs_image else [{}, {}]
    return [Prompt(text, column) for text, column in zip(TEXTS, columns, strict=True)]


def through_pipeline(
    model: DiffusersModel, prompt: Prompt, noise: Tensor, output: str, steps: int = STEPS
) -> tuple[Any, ...]:
    """Run diffusers' own pipeline from the initial latents `noise`, and return its output tuple.

    A scheduler other than Euler's is first replaced by the Euler scheduler, whose steps our `ode` kernel takes too.

    Args:
        output: The pipeline's `output_type`: `latent` for final latents, `np` for pixels.
    """
    pipe = model.pipe
    if not isinstance(pipe.scheduler, FlowMatchEulerDiscreteScheduler):
        pipe.scheduler = FlowMatchEulerDiscreteScheduler(shift=pipe.scheduler.config.flow_shift)
    condition = {k: v for k, v in model.encode([prompt]).items() if not k.startswith(NEGATIVE)}
    arguments = {
        "prompt": prompt.text,
        "negative_prompt": model.negative_prompt,
        "image": prompt.columns.get("image"),
        "height": model.height,
        "width": model.width,
        "num_frames": model.frames,
        "num_inference_steps": steps,
        "guidance_scale": model.guidance_scale,
        "output_type": output,
        "max_sequence_length": model.text_tokens or None,
        **model.pipeline_inputs(noise, condition),
    }
    known = inspect.signature(pipe.__call__).parameters
    found: tuple[Any, ...] = pipe(
        **{k: v for k, v in arguments.items() if k in known and v is not None}, return_dict=False
    )
    return found


def check_pipeline(model: DiffusersModel) -> None:
    """Check that our sampler with the `ode` kernel ends at the same latents as the diffusers pipeline."""
    for i, prompt in enumerate(prompts_for(model)):
        key = ("contract", i)
        noise = keyed_noise(model.latent_shape(prompt), [(*key, "initial")], model.device)
        expected = model.pipeline_latents(through_pipeline(model, prompt, noise, "latent"))
        table = kernel_table("ode", model.pipe.scheduler.sigmas.double(), 0.0)
        for model.branches_together in (False, True):
            got = sample(model, [prompt], table, [key], [key]).x0
            torch.testing.assert_close(got, expected.float(), rtol=1e-4, atol=1e-4)
        assert (got - noise).abs().mean() > 0.05, "the sampler did not move: the tiny model's velocity is almost zero"


def check_guidance(model: DiffusersModel) -> None:
    """Check that the velocity depends on the prompt, and on the negative prompt if and only if guidance is on."""
    prompts = prompts_for(model)
    x = keyed_noise(model.latent_shape(prompts[0]), [("guide", 0)], model.device)
    with torch.no_grad():
        first, other = (velocity_at(model, x, 0.7, model.encode([prompt])) for prompt in prompts)
        assert not torch.equal(first, other), "the velocity does not depend on the prompt: look at the tokenizer's cut"
        model.negative_prompt = "another negative text"
        changed = velocity_at(model, x, 0.7, model.encode(prompts[:1]))
        model.negative_prompt = "blurry"
    assert torch.equal(first, changed) != model.guided, "the negative prompt has no effect, or has one unguided"


def check_batch(model: DiffusersModel) -> None:
    """Check that a batch of different prompts and noise levels gets the same velocities as its samples one by one."""
    prompts = prompts_for(model)
    x = keyed_noise(model.latent_shape(prompts[0]), [("batch", i) for i in range(2)], model.device)
    sigma = torch.tensor([0.9, 0.35], device=model.device)
    with torch.no_grad():
        together = model.velocity(x, sigma, model.encode(prompts))
        alone = [model.velocity(x[i : i + 1], sigma[i : i + 1], model.encode([prompts[i]])) for i in range(2)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-4)


def check_branches(model: DiffusersModel) -> None:
    """Check that velocities and gradients are the same with both branches of guidance in one pass as in two passes."""
    prompts = prompts_for(model)
    x = keyed_noise(model.latent_shape(prompts[0]), [("branches", i) for i in range(2)], model.device)
    condition, found = model.encode(prompts), []
    for model.branches_together in (False, True):
        model.module.zero_grad()
        v = velocity_at(model, x, 0.7, condition)
        v.float().square().mean().backward()  # type: ignore[no-untyped-call]
        weights = model.module.parameters()
        found.append((v.detach(), torch.cat([p.grad.flatten() for p in weights if p.grad is not None])))
    (two, slopes), (one, others) = found
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
    assert (others - slopes).norm() < 1e-4 * slopes.norm()


def check_gradients(model: DiffusersModel) -> None:
    """Check that gradients reach all of the network's parameters that `model.unused` does not name, and no others."""
    prompts = prompts_for(model)
    x = keyed_noise(model.latent_shape(prompts[0]), [("gradient", i) for i in range(2)], model.device)
    condition = model.encode(prompts)
    for sigma in (0.95, 0.2):  # both experts where there are two
        velocity_at(model, x, sigma, condition).float().square().mean().backward()  # type: ignore[no-untyped-call]
    named = {n: any(re.search(pattern, n) for pattern in model.unused) for n, _ in model.module.named_parameters()}
    missing = [n for n, p in model.module.named_parameters() if p.grad is None and not named[n]]
    assert not missing, f"no gradient reaches {missing[:3]}: name them in `unused`"
    used = [n for n, p in model.module.named_parameters() if named[n] and p.grad is not None and p.grad.any()]
    assert not used, f"{used[:3]} have a gradient but are named in `unused`: they would not be trained"
    held = [
        part for name in (*model.encoders, *model.decoders) if (part := getattr(model.pipe, name, None)) is not None
    ]
    assert not any(p.requires_grad or p.grad is not None for part in held for p in part.parameters())


def check_decode(model: DiffusersModel) -> None:
    """Check that decoded frames equal those of the diffusers pipeline, and so does the sound if the model makes any."""
    prompt = prompts_for(model)[0]
    noise = keyed_noise(model.latent_shape(prompt), [("contract", 0, "initial")], model.device)
    pictures, *heard = through_pipeline(model, prompt, noise, "np")
    expected = torch.as_tensor(pictures)
    if expected.dim() == 4:  # a picture
        expected = expected[:, None]
    table = kernel_table("ode", model.pipe.scheduler.sigmas.double(), 0.0)
    videos = model.render(sample(model, [prompt], table, [("contract", 0)], [("contract", 0)]).x0)
    frames = videos.frames
    assert frames.dtype == torch.uint8
    assert frames.shape == (1, model.frames, model.height, model.width, 3)
    off = (frames.float() - expected * 255).abs()
    assert off.max() <= 1.01, f"decoded frames differ from the pipeline's by up to {off.max():.1f} of 255"
    if heard:
        assert videos.sound is not None
        assert videos.sample_rate
        assert videos.sound.std() > 1e-3, "the tiny model makes no sound"
        torch.testing.assert_close(videos.sound, heard[0].float(), rtol=1e-4, atol=1e-4)


def check_seeds(model: DiffusersModel) -> None:
    """Check that the same noise key gives the same latents bit for bit, and that another key gives other latents."""
    prompt, table = prompts_for(model)[:1], kernel_table("sage", sigma_schedule(STEPS, 3.0), 0.5)
    first, again, other = (sample(model, prompt, table, [(k,)], [(k,)]).x0 for k in ("a", "a", "b"))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


CHECKS: Sequence[Callable[[DiffusersModel], None]] = (
    check_pipeline,
    check_guidance,
    check_batch,
    check_branches,
    check_gradients,
    check_decode,
    check_seeds,
)


def check(adapter: type[DiffusersModel]) -> list[str]:
    """Run all checks on an adapter, with guidance on and off, and return the names of the checks that were run."""
    done = []
    with tempfile.TemporaryDirectory() as folder:
        path = make_checkpoint(adapter, folder)
        for guided in (True, False):
            for run_check in CHECKS:
                run_check(load(adapter, path, guided=guided))
                done.append(f"{run_check.__name__}, guidance {'on' if guided else 'off'}")
    return done
