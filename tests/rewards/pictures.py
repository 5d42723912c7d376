"""Photographs that come with scikit-image and scikit-learn."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image

FILES = {
    "chelsea": ("skimage", "data/chelsea.png"),
    "coffee": ("skimage", "data/coffee.png"),
    "rocket": ("skimage", "data/rocket.jpg"),
    "motorcycle": ("skimage", "data/motorcycle_left.png"),
    "camera": ("skimage", "data/camera.png"),
    "china": ("sklearn", "datasets/images/china.jpg"),
    "flower": ("sklearn", "datasets/images/flower.jpg"),
}
CAPTIONS = {
    "chelsea": "a photo of a cat",
    "coffee": "a cup of coffee on a table",
    "rocket": "a rocket on its launch pad",
    "motorcycle": "a motorcycle in a garage",
    "camera": "a man with a camera on a tripod",
    "china": "a Chinese palace with a curved roof",
    "flower": "a large flower in a garden",
}


def picture(name):
    """uint8 (H, W, 3)"""
    package, path = FILES[name]
    file = Path(find_spec(package).submodule_search_locations[0]) / path
    return torch.from_numpy(np.array(Image.open(file).convert("RGB")))
