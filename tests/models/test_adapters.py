"""What single adapters promise beyond the contract: sizes, experts, encoders, decoders, embeddings."""

import math

import pytest

pytest.importorskip("diffusers")

import diffusers as df
import torch
from PIL import Image

from sage_grpo.core.protocols import Prompt
from sage_grpo.core.rollout import keyed_noise, sample, velocity_at
from sage_grpo.math.kernels import kernel_table
from sage_grpo.math.schedule import sigma_schedule
from sage_grpo.models import contract
from sage_grpo.models.base import ModelError, read_image
from sage_grpo.models.hunyuan15 import HunyuanVideo15, HunyuanVideo15ImageToVideo
from sage_grpo.models.ltx import LTXVideo, LTXVideoImageToVideo
from sage_grpo.models.ltx2 import LTX2
from sage_grpo.models.wan import Wan, Wan22, Wan22SmallImageToVideo

pytestmark = pytest.mark.slow


def test_a_decoder_that_denoises_gives_the_pipelines_frames_in_any_batch(tmp_path):
    """LTX-Video 0.9.1 and later: their noise is the same for every video."""
    pipe = LTXVideo.tiny()
    changes = {"timestep_conditioning": True, "decoder_inject_noise": (False,) * 5}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        pipe.register_modules(vae=type(pipe.vae).from_config({**pipe.vae.config, **changes}))
    pipe.save_pretrained(tmp_path)
    model = contract.load(LTXVideo, str(tmp_path))
    prompts = contract.prompts_for(model)
    noise = keyed_noise(model.latent_shape(prompts[0]), [("contract", i, "initial") for i in range(2)], model.device)
    table = kernel_table("ode", sigma_schedule(contract.STEPS, 3.0), 0.0)
    both = [("contract", i) for i in range(2)]
    together = model.decode(sample(model, prompts, table, both, both).x0)
    for i, prompt in enumerate(prompts):
        alone = sample(model, [prompt], table, both[i : i + 1], both[i : i + 1]).x0
        assert (model.decode(alone)[0].int() - together[i].int()).abs().max() <= 1
        seeded = {"generator": torch.Generator().manual_seed(0), "decode_timestep": 0.05, "decode_noise_scale": 0.025}
        ours = model.pipeline_inputs(noise[i : i + 1], {})
        model.pipeline_inputs = lambda *given, ours=ours, seeded=seeded: ours | seeded
        expected = torch.as_tensor(contract.through_pipeline(model, prompt, noise[i : i + 1], "np")[0])
        del model.pipeline_inputs
        exact = sample(
            model,
            [prompt],
            kernel_table("ode", model.pipe.scheduler.sigmas.double(), 0.0),
            both[i : i + 1],
            both[i : i + 1],
        )
        assert (model.decode(exact.x0).float() - 255 * expected).abs().max() <= 1.01


def test_a_decoder_of_ltx2_that_denoises_is_refused():
    pipe = LTX2.tiny()
    pipe.vae.register_to_config(timestep_conditioning=True)
    with pytest.raises(ModelError, match="LTX-2 decoder denoises by itself"):
        LTX2(pipe, frames=9, height=64, width=64)


def test_sound_has_a_guidance_scale_of_its_own(checkpoint):
    """It is the pipeline's, and touches nothing but the sound of the step."""
    models = [contract.load(LTX2, checkpoint(LTX2), sound_guidance_scale=scale) for scale in (7.0, None)]
    contract.check_pipeline(models[0])
    prompt = contract.prompts_for(models[0])[:1]
    x = keyed_noise(models[0].latent_shape(prompt[0]), [("sound", 0)], models[0].device)
    with torch.no_grad():
        own, same = (model.parts.unpack(velocity_at(model, x, 0.7, model.encode(prompt))) for model in models)
    torch.testing.assert_close(own["video"], same["video"], rtol=1e-5, atol=1e-5)
    assert not torch.equal(own["sound"], same["sound"])


class WholeTimes(Wan):
    """UniPC rounds timesteps to integers."""

    def times(self, x, sigma, inputs):
        return self.timestep(sigma).long()


def test_wan_equals_its_own_scheduler_at_first_order(checkpoint):
    """Wan ships with UniPC; at order 1 without corrector it is the same ODE step as ours."""
    model, steps, key = contract.load(WholeTimes, checkpoint(Wan)), 6, ("unipc",)
    model.pipe.scheduler = df.UniPCMultistepScheduler.from_config(
        model.pipe.scheduler.config, solver_order=1, disable_corrector=list(range(steps))
    )
    prompt = contract.prompts_for(model)[0]
    noise = contract.keyed_noise(model.latent_shape(prompt), [(*key, "initial")], model.device)
    expected = model.pipe(
        prompt.text,
        "blurry",
        model.height,
        model.width,
        model.frames,
        steps,
        contract.SCALE,
        latents=noise,
        output_type="latent",
        return_dict=False,
        max_sequence_length=model.text_tokens,
    )[0]
    table = kernel_table("ode", model.pipe.scheduler.sigmas.double(), 0.0)
    got = sample(model, [prompt], table, [key], [key]).x0
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_experts_share_the_work_by_noise(checkpoint):
    model, seen = contract.load(Wan22, checkpoint(Wan22)), []
    for name in ("transformer", "transformer_2"):
        getattr(model.pipe, name).register_forward_hook(lambda m, a, o, name=name: seen.append(name))
    prompts = contract.prompts_for(model)
    x = torch.zeros(2, *model.latent_shape(prompts[0]))
    model.guidance_scale = 1.0
    model.velocity(x, torch.tensor([0.95, 0.95]), model.encode(prompts))
    model.velocity(x, torch.tensor([0.5, 0.5]), model.encode(prompts))
    model.velocity(x, torch.tensor([0.95, 0.5]), model.encode(prompts))
    assert seen == ["transformer", "transformer_2", "transformer", "transformer_2"]
    assert len(list(model.module.children())) == 2
    assert len(model.shard_blocks) == 4


def test_second_expert_has_its_own_guidance(checkpoint):
    model = contract.load(Wan22, checkpoint(Wan22), guidance_scale_2=1.5)
    positive, negative = torch.ones(2, 1, 1, 1, 1), torch.zeros(2, 1, 1, 1, 1)
    assert model.guide(positive, negative, torch.tensor([0.9, 0.5])).flatten().tolist() == [contract.SCALE, 1.5]


@pytest.mark.parametrize("adapter", [LTXVideoImageToVideo, Wan22SmallImageToVideo])
def test_given_frame_is_in_the_result_and_carries_no_gradient(adapter, checkpoint):
    model = contract.load(adapter, checkpoint(adapter))
    prompt = contract.prompts_for(model)[:1]
    table = kernel_table("sage", torch.tensor([1.0, 0.6, 0.3, 0.0], dtype=torch.float64), 0.5)
    table = table.ode_outside(table.sigma_next > 0)
    trajectory = sample(model, prompt, table, [("a",)], [("a",)])
    first = trajectory.condition["first_frame"]
    start = trajectory.x0[:, : first.shape[1]] if first.dim() == 3 else trajectory.x0[:, :, :1]
    torch.testing.assert_close(start, first, rtol=0, atol=1e-5)


def test_hunyuan_has_the_token_counts_of_the_real_model():
    """21 latent frames at 81 frames; sides divided by 16."""
    sizes = {(352, 624): 18_018, (480, 848): 33_390, (720, 1280): 75_600}
    model = HunyuanVideo15(HunyuanVideo15.tiny(), frames=81, height=352, width=624)
    for (model.height, model.width), tokens in sizes.items():
        assert math.prod(model.latent_shape(Prompt(""))[1:]) == tokens


@pytest.mark.parametrize(("target", "size"), [(640, (480, 848)), (960, (720, 1280))])
def test_hunyuan_480p_and_720p_checkpoints_know_their_size(target, size):
    pipe = HunyuanVideo15.tiny()
    pipe.target_size = target
    model = HunyuanVideo15(pipe)
    assert (model.height, model.width, model.frames) == (*size, 121)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"frames": 6}, "model.frames=6 must be a multiple of 4 plus 1; use 5"),
        ({"height": 40}, "model.height=40 must be a multiple of 16; use 32"),
    ],
)
def test_sizes_are_checked_with_the_nearest_fix(settings, message, checkpoint):
    with pytest.raises(ModelError, match=message):
        contract.load(HunyuanVideo15, checkpoint(HunyuanVideo15), **settings)


def test_wrong_checkpoint_is_named(checkpoint, tmp_path):
    with pytest.raises(ModelError, match=r"Wan22.*wan2\.2 for 2\.2 A14B"):
        contract.load(Wan22, checkpoint(Wan))
    with pytest.raises(ModelError, match="is not a WanPipeline checkpoint"):
        contract.load(Wan, str(tmp_path))


def test_stateful_guider_is_refused(checkpoint):
    pipe = HunyuanVideo15.tiny()
    pipe.guider = df.AdaptiveProjectedGuidance(guidance_scale=6.0)
    with pytest.raises(ModelError, match="AdaptiveProjectedGuidance"):
        HunyuanVideo15(pipe, **HunyuanVideo15.tiny_options)


def test_guider_rescale_is_that_of_the_checkpoint(checkpoint):
    """The checkpoint's own formula is used, not only its scale."""
    model = contract.load(HunyuanVideo15, checkpoint(HunyuanVideo15))
    model.pipe.guider = model.pipe.guider.new(guidance_rescale=0.7)
    contract.check_pipeline(model)


def test_images_come_from_files_objects_and_bytes(tmp_path):
    Image.new("RGB", (4, 4), "red").save(tmp_path / "a.png")
    for value in (str(tmp_path / "a.png"), {"bytes": (tmp_path / "a.png").read_bytes()}, Image.new("L", (4, 4))):
        assert read_image(Prompt("x", {"image": value})).mode == "RGB"
    for value, message in ((None, "needs a column `image`"), (str(tmp_path / "b.png"), "cannot be read")):
        with pytest.raises(ModelError, match=message):
            read_image(Prompt("x", {"image": value}))


@pytest.mark.parametrize("side", [8_000, 15_000])  # the latter is beyond Pillow's own limit too
def test_a_picture_that_would_fill_the_memory_is_not_decoded(tmp_path, side, monkeypatch, recwarn):
    Image.new("1", (side, side)).save(tmp_path / "bomb.png")
    assert (tmp_path / "bomb.png").stat().st_size < 100_000
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it is decoded"))
    with pytest.raises(ModelError, match=r"megapixels; scale it|decompression bomb"):
        read_image(Prompt("x", {"image": str(tmp_path / "bomb.png")}))
    assert not [w for w in recwarn if issubclass(w.category, Image.DecompressionBombWarning)]


def test_embeddings_are_made_once_and_found_by_content(checkpoint, tmp_path):
    path = checkpoint(HunyuanVideo15ImageToVideo)
    model = contract.load(HunyuanVideo15ImageToVideo, path, conditions=tmp_path)
    prompts = contract.prompts_for(model)
    first = model.encode([*prompts, *prompts])
    assert model.conditions.made == 5  # two texts, two images, one negative text
    again = contract.load(HunyuanVideo15ImageToVideo, path, conditions=tmp_path)
    again.pipe.text_encoder = again.pipe.image_encoder = again.pipe.text_encoder_2 = None  # not needed any more
    again._fingerprint = model._fingerprint
    second = again.encode([*prompts, *prompts])
    assert again.conditions.made == 0
    assert all(torch.equal(first[name], second[name]) for name in first)

    other = contract.load(HunyuanVideo15ImageToVideo, path, conditions=tmp_path)
    with torch.no_grad():
        next(other.pipe.text_encoder.parameters()).add_(1.0)
    other.encode(prompts)
    assert other.conditions.made == 5  # another encoder, other embeddings


def test_half_a_file_is_made_again(checkpoint, tmp_path):
    model = contract.load(Wan, checkpoint(Wan), conditions=tmp_path)
    prompts = contract.prompts_for(model)
    expected = model.encode(prompts)
    for path in tmp_path.rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:40])
    model.conditions.recent.clear()
    got = model.encode(prompts)
    assert torch.equal(got["text"], expected["text"])
    assert not list(tmp_path.rglob("*.new"))


def test_encoders_and_decoder_only_visit_the_device(checkpoint):
    """`meta` stands for an accelerator: nothing can be copied back from it, and nothing needs to be."""
    model, seen = contract.load(Wan, checkpoint(Wan)), []
    parts = {name: getattr(model.pipe, name) for name in ("transformer", "text_encoder", "vae")}

    def where():
        found = {name: {t.device.type for t in (*part.parameters(), *part.buffers())} for name, part in parts.items()}
        return {name: kinds.pop() if len(kinds) == 1 else kinds for name, kinds in found.items()}

    def answer(value):
        seen.append(where())
        return value

    at_home = {"transformer": "meta", "text_encoder": "cpu", "vae": "cpu"}
    model.place(torch.device("meta"), offload_device=torch.device("cpu"))
    assert where() == at_home
    frozen = [*parts["text_encoder"].named_parameters(), *parts["vae"].named_parameters()]
    values = [weight.clone() for _, weight in frozen]
    count = len({id(weight) for weight in parts["text_encoder"].parameters()})
    model.embed_text = lambda text: answer({"text": torch.zeros(1, 2, 2)})
    model.to_pixels = lambda x0: answer(torch.zeros(1, 3, 1, 2, 2))
    prompts = contract.prompts_for(model)
    model.encode(prompts[:1])
    assert {tuple(place.items()) for place in seen} == {tuple((at_home | {"text_encoder": "meta"}).items())}
    seen.clear()
    model.decode(torch.zeros(1, *model.latent_shape(prompts[0])))
    assert seen == [at_home | {"vae": "meta"}]
    assert where() == at_home
    again = [*parts["text_encoder"].named_parameters(), *parts["vae"].named_parameters()]
    for (_, before), (name, after), value in zip(frozen, again, values, strict=True):
        assert before is after, name
        assert torch.equal(after, value), name
    with model.on_device("text_encoder"):  # tied weights travel once
        assert len({id(weight) for weight in parts["text_encoder"].parameters()}) == count
    with pytest.raises(KeyError), model.on_device("vae"):
        raise KeyError
    assert where() == at_home


@pytest.mark.parametrize("adapter", [Wan, HunyuanVideo15, LTXVideo])
def test_an_outline_has_the_size_of_the_checkpoint(adapter, checkpoint):
    """Tied weights, such as the embedding of Wan's text encoder, are counted once."""
    frames, height, width = adapter.tiny_size
    size = {"frames": frames, "height": height, "width": width}
    loaded = contract.load(adapter, checkpoint(adapter))
    outline = adapter.outline(checkpoint(adapter), **size, **adapter.tiny_options)
    for name in (*adapter.denoisers, *adapter.encoders, "vae"):
        real, planned = (getattr(model.pipe, name, None) for model in (loaded, outline))
        if real is not None:
            counts = [sum(w.numel() for w in part.parameters()) for part in (real, planned)]
            assert counts[0] == counts[1], name
