"""Write a report as one HTML file: numbers, curves, heat maps, videos, tables.

The file needs no network and no other files.
"""

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.resources import files
from itertools import count, groupby
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from sage_grpo.files import atomic_write
from sage_grpo.report.heat import HeatMap, draw_heat
from sage_grpo.report.svg import Chart, Curve, draw_chart

__all__ = [
    "Chart",
    "Clip",
    "Curve",
    "Details",
    "Headline",
    "HeatMap",
    "Page",
    "PageTable",
    "Picture",
    "Section",
    "VideoPair",
    "VideoStrip",
    "render_page",
    "write_page",
]

NUMBER = re.compile(r"[\[(]?[+−-]?\$?\.?\d.{,24}$")  # 0.5, $3, −1.2 ± 0.1, [0.2, 0.4]; not a sentence about 3 seeds

# Whoever asked for less motion gets still videos; everyone gets one button to stop or start them all, in step.
SCRIPT = """
const videos = [...document.querySelectorAll("video")], button = document.querySelector("#motion");
const ready = Promise.all(videos.map(video => video.readyState > 2 || new Promise(done => {
  for (const event of ["canplay", "error"]) video.addEventListener(event, done, {once: true});
})));
let on = false;
function move(wanted) {
  on = wanted;
  button.textContent = on ? "Pause all videos" : "Play all videos";
  for (const video of videos) video.pause();
  if (on) ready.then(() => {
    for (const video of on ? videos : []) { video.currentTime = 0; video.play().catch(() => {}); }
  });
}
if (button) {
  for (const video of videos) video.autoplay = false;
  button.hidden = false;
  button.onclick = () => move(!on);
  move(!matchMedia("(prefers-reduced-motion: reduce)").matches);
}
"""


@dataclass(frozen=True)
class Headline:
    """A number to remember, shown in large letters at the top of the page, with a title and a note."""

    title: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class VideoPair:
    """Two videos of one prompt, such as before and after training, as the bytes of mp4 files."""

    prompt: str
    before: bytes
    after: bytes
    before_note: str = ""
    after_note: str = ""


@dataclass(frozen=True)
class Picture:
    """An animated picture that opens the page, as the bytes of a WebP file, with a sentence under it."""

    webp: bytes
    description: str  # for those who cannot see it
    caption: str


@dataclass(frozen=True)
class PageTable:
    """A table of a page: rows of text under a header. The first cell of a row is its name."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def __post_init__(self) -> None:
        wrong = [i for i, row in enumerate(self.rows) if len(row) != len(self.header)]
        if wrong:
            need = f"{len(self.header)} cells a row, as in its header"
            raise ValueError(f"table {self.title!r} needs {need}: row {wrong[0]} has {len(self.rows[wrong[0]])}")

    def numeric(self, column: int) -> bool:
        """Return whether all cells of a column are numbers. The page aligns such a column at the right.

        Empty cells and dashes do not count. The first column is never numeric.
        """
        cells = [row[column] for row in self.rows if row[column].strip(" –—")]
        return column > 0 and bool(cells) and all(NUMBER.match(cell) for cell in cells)


@dataclass(frozen=True)
class Clip:
    """One video of a `VideoStrip`: its label, and the bytes of an mp4 file."""

    label: str
    mp4: bytes


@dataclass(frozen=True)
class VideoStrip:
    """The videos of one prompt and seed over the iterations of training, with a row per run.

    A row has the name of its run, which is empty if there is only one run.
    """

    prompt: str
    rows: Sequence[tuple[str, Sequence[Clip]]]


@dataclass(frozen=True)
class Details:
    """A text that is folded until the reader opens it."""

    title: str
    text: str


Item = Chart | Details | HeatMap | PageTable | VideoPair | VideoStrip


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading. Neighbouring items of one kind are laid out as one grid."""

    key: str  # its address in the page
    title: str
    items: Sequence[Item] = ()
    note: str = ""

    def groups(self) -> list[tuple[str, list[Item]]]:
        return [(kind.__name__, list(items)) for kind, items in groupby(self.items, key=type)]

    def moves(self) -> bool:
        return any(isinstance(item, VideoPair | VideoStrip) for item in self.items)


@dataclass(frozen=True)
class Page:
    """The content of a report.

    A part whose list is empty is left out. `sections` come after the videos, charts and tables.
    """

    title: str
    summary: str
    headlines: Sequence[Headline] = ()
    charts: Sequence[Chart] = ()
    pairs: Sequence[VideoPair] = ()
    tables: Sequence[PageTable] = ()
    footer: str = ""
    sections: Sequence[Section] = ()
    notices: Sequence[str] = field(default=())  # what the reader must know first
    picture: Picture | None = None

    def parts(self) -> list[Section]:
        usual = [
            Section("videos", "Before and after", self.pairs),
            Section("curves", "Curves", self.charts),
            Section("tables", "Tables", self.tables),
        ]
        return [part for part in [*usual, *self.sections] if part.items or part.note]


def as_uri(content: bytes, kind: str = "video/mp4") -> str:
    return f"data:{kind};base64," + b64encode(content).decode("ascii")


def render_page(page: Page) -> str:
    """Return a page as the text of an HTML file. The same page always gives the same text."""
    room = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    numbers = count(1)
    room.filters["uri"] = as_uri
    room.filters["chart"] = lambda chart: draw_chart(chart, f"chart-{next(numbers)}")
    room.filters["heat"] = lambda heat: draw_heat(heat, f"heat-{next(numbers)}")
    template = room.from_string(files("sage_grpo.report").joinpath("page.html").read_text(encoding="utf-8"))
    return template.render(
        page=page,
        paragraphs=[p for p in re.split(r"\n\s*\n", page.summary) if p.strip()],
        sections=page.parts(),
        moving=next((part.key for part in page.parts() if part.moves()), None),
        script=Markup(SCRIPT),
        # the browser runs this script and no other, should a text ever slip through unescaped
        script_hash=b64encode(sha256(SCRIPT.encode()).digest()).decode("ascii"),
    )


def write_page(page: Page, path: Path) -> None:
    """Write a page to `path` as an HTML file, whole or not at all: a reader never meets half a file."""
    # a lone surrogate has no UTF-8: as a character reference the browser shows its replacement sign
    content = render_page(page).encode("utf-8", errors="xmlcharrefreplace")
    atomic_write(path, content)
