"""The model of shapes with its first base, whose one flaw guidance removes: captions that are wrong independently."""

from sage_grpo.lab.first.reward import FirstShapesReward
from sage_grpo.lab.shapes.model import ShapesModel
from sage_grpo.lab.shapes.reward import ShapesReward
from sage_grpo.registry import model


@model("shapes-first")
class FirstShapesModel(ShapesModel):
    """The `VideoModel` of shapes with its first base. Only studies that were made on it should use it."""

    shipped = "sage_grpo.lab.first"
    scorer: type[ShapesReward] = FirstShapesReward
