"""The model of the world of shapes: its clip size, words and prompts."""

from collections.abc import Mapping, Sequence

from sage_grpo.lab.generator import LabModel
from sage_grpo.lab.shapes import world as shapes
from sage_grpo.lab.shapes.reward import ShapesReward
from sage_grpo.registry import model


@model("shapes")
class ShapesModel(LabModel):
    """The `VideoModel` that makes clips of one coloured shape that moves."""

    own_monitors: Sequence[str] = ("shapes-heldout",)
    world = "shapes"
    shipped = "sage_grpo.lab.shapes"
    scorer: type[ShapesReward] = ShapesReward  # in standard deviations of the shipped base
    clip, patch, channels = (shapes.FRAMES, shapes.SIZE, shapes.SIZE), (8, 8, 8), 8
    words = ("a", "moving", *shapes.SHAPES, *shapes.COLOURS, *shapes.DIRECTIONS)
    text_length = 8

    @classmethod
    def own_prompts(cls) -> Sequence[str]:
        return shapes.all_prompts()

    @classmethod
    def training_prompts(cls) -> Sequence[str]:
        return shapes.training_prompts()

    @classmethod
    def prompt_tags(cls, prompt: str) -> Mapping[str, str]:
        shape, colour, direction = shapes.parse_prompt(prompt)
        return {
            "shape": shapes.SHAPES[shape],
            "colour": shapes.COLOURS[colour],
            "direction": shapes.DIRECTIONS[direction],
            "training": "kept out" if shapes.kept_out(prompt) else "given",
        }
