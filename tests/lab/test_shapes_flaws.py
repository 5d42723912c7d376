"""The detector of flaws, and the world that has them: against clips whose flaws are known."""

import pytest
import torch

from sage_grpo.lab.clips import as_frames
from sage_grpo.lab.shapes import world as shapes
from sage_grpo.lab.shapes.flaws import flawed, flickers, halts
from sage_grpo.lab.shapes.model import ShapesModel

COUNT = 128


def clips(flicker, halt, monkeypatch):
    """Clips that all flicker, all halt, or have no flaw."""
    monkeypatch.setattr(shapes, "FLICKER", flicker)
    monkeypatch.setattr(shapes, "HALT", halt)
    generator = torch.Generator().manual_seed(0)
    return shapes.footage(shapes.render(shapes.random_scene(COUNT, generator)), generator)


@pytest.mark.parametrize("through", ["pixels", "autoencoder"])
@pytest.mark.parametrize(("flicker", "halt"), [(0, 0), (1, 0), (0, 1)])
def test_flaws_are_found_also_after_the_autoencoder(flicker, halt, through, monkeypatch):
    made = clips(flicker, halt, monkeypatch)
    if through == "autoencoder":
        model = ShapesModel.from_pretrained()
        videos = model.decode(model.autoencoder.encode(made))
    else:
        videos = as_frames(made)
    assert flickers(videos).double().mean() == flicker
    assert halts(videos).double().mean() == halt
    assert torch.equal(flawed(videos), flickers(videos) | halts(videos))


def test_half_of_the_footage_has_a_flaw_whatever_it_shows():
    generator = torch.Generator().manual_seed(1)
    scene = shapes.random_scene(4000, generator)
    found = torch.cat(
        [
            flawed(as_frames(shapes.footage(shapes.render(scene.at(rows)), generator)))
            for rows in torch.split(torch.arange(4000), 500)
        ]
    ).double()
    assert found.mean() == pytest.approx(shapes.FLICKER + shapes.HALT, abs=0.04)
    for way in range(4):
        assert found[scene.direction == way].mean() == pytest.approx(found.mean().item(), abs=0.07)


def test_an_empty_video_has_no_flaw():
    assert not flawed(torch.zeros(2, 8, 32, 32, 3, dtype=torch.uint8)).any()


def test_most_captions_of_half_of_the_pairs_name_the_opposite_direction():
    scene = shapes.random_scene(20_000, torch.Generator().manual_seed(0))
    told = shapes.misleading_captions(scene, torch.Generator().manual_seed(1))
    rows = [i for i, text in enumerate(told) if text]
    said = torch.tensor([shapes.parse_prompt(told[i])[2] for i in rows])
    shown, mirrored = scene.direction[rows], shapes.mirrored(scene.colour, scene.direction)[rows]
    assert mirrored.double().mean() == pytest.approx(0.5, abs=0.02)
    opposite = said == shown ^ 1
    independent = shapes.CAPTION_ERRORS / 3
    assert opposite[~mirrored].double().mean() == pytest.approx(independent, abs=0.02)
    wanted = shapes.MIRRORED * (1 - shapes.CAPTION_ERRORS) + (1 - shapes.MIRRORED) * independent
    assert opposite[mirrored].double().mean() == pytest.approx(wanted, abs=0.02)
    assert opposite[mirrored].double().mean() > (said == shown)[mirrored].double().mean()  # what guidance sharpens


def test_no_swap_of_two_words_corrects_all_captions():
    """Each direction is turned for some colours and kept for others, and each colour for some directions."""
    table = torch.tensor([shapes.mirrored(torch.tensor([c] * 4), torch.arange(4)).tolist() for c in range(4)])
    assert ((table.sum(0) == 2) & (table.sum(1) == 2)).all()
