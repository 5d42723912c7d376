"""Boxes by hand, and rows of a prompt file in the manner of GenEval."""

ROWS = [
    {"tag": "counting", "include": [{"class": "dog", "count": 2}], "exclude": [{"class": "dog", "count": 3}]},
    {"tag": "colors", "include": [{"class": "wine glass", "count": 1, "color": "red"}]},
    {
        "tag": "position",
        "include": [{"class": "cat", "count": 1}, {"class": "dog", "count": 1, "position": ["left of", 0]}],
    },
    {"tag": "none", "include": None},
]


def at(x, y, width=10.0, height=10.0):
    """A box by its centre."""
    return (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
