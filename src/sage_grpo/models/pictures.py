"""What models of pictures share: a picture is a video of one frame."""

from sage_grpo.models.base import DiffusersModel
from sage_grpo.models.errors import ModelError


def refuse_frames(model: DiffusersModel) -> None:
    if model.frames != 1:
        raise ModelError(f"{type(model).__name__} makes pictures: model.frames={model.frames} must be 1")
