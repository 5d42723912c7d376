"""Results as Markdown and as a page."""

from typing import Any

from sage_grpo.report.page import Headline, Page, PageTable


def percent(found: dict[str, float] | None) -> str:
    if not found:
        return "–"
    return f"{100 * found['value']:.1f} [{100 * found['low']:.1f}, {100 * found['high']:.1f}]"


def signed(found: dict[str, float]) -> str:
    return f"{found['value']:+.2f} [{found['low']:+.2f}, {found['high']:+.2f}]".replace("-", "−")


def rate_table(part: dict[str, Any], title: str, note: str = "") -> PageTable:
    """One row a pair, one column a dimension: the form of a user study's table."""
    dimensions = list(part["dimensions"].values())
    rows = []
    for k, pair in enumerate(dimensions[0]["pairs"]):
        cells = [percent(one["pairs"][k]["rate"]) for one in dimensions]
        rows.append([f"{pair['first']} vs. {pair['second']}", *cells])
    return PageTable(title, ["win rate, %", *(one["name"] for one in dimensions)], rows, note)


def count_table(part: dict[str, Any]) -> PageTable:
    rows = [
        [
            f"{pair['first']} vs. {pair['second']}",
            one["name"],
            str(pair["wins"]),
            str(pair["ties"]),
            str(pair["losses"]),
        ]
        for one in part["dimensions"].values()
        for pair in one["pairs"]
    ]
    return PageTable("Counts", ["pair", "dimension", "won", "same", "lost"], rows)


def score_table(part: dict[str, Any]) -> PageTable:
    dimensions = list(part["dimensions"].values())
    separated = [one["name"] for one in dimensions if one["separated"]]
    note = "e to the difference of two scores is the odds that one is preferred to the other."
    if separated:
        note += (
            f" In {', '.join(separated)} some sources never lost to the rest and the most likely scores are infinite: "
            "half a win each way was added to every pair, so they are finite, but their size is the addition's."
        )
    rows = [[source, *(signed(one["scores"][source]) for one in dimensions)] for source in dimensions[0]["scores"]]
    return PageTable("Bradley–Terry scores", ["source", *(one["name"] for one in dimensions)], rows, note)


def quality_table(part: dict[str, Any]) -> PageTable:
    rows = [
        [
            one["name"],
            "–" if one["alpha"] is None else f"{one['alpha']:.3f}",
            "–" if one["ties"] is None else f"{100 * one['ties']:.1f} %",
        ]
        for one in part["dimensions"].values()
    ]
    return PageTable("Agreement and ties", ["dimension", "Krippendorff's α", "ties"], rows)


def check_table(found: dict[str, Any]) -> PageTable:
    rows = [
        [one["rater"][:8], str(one["answered"]), str(one["checks"]), str(one["failed"]), one["left_out"] or "kept"]
        for one in found["checks"]
    ]
    return PageTable("Attention checks", ["rater", "answers", "checks", "failed", "outcome"], rows, found["rule"])


def tables(found: dict[str, Any]) -> list[PageTable]:
    main = found["kept"] or found["all"]
    out = [rate_table(main, "Win rates", found["method"]), score_table(main), quality_table(main), count_table(main)]
    if found["kept"] and found["raters"]["left_out"]:
        out.insert(1, rate_table(found["all"], "Win rates with those who were left out"))
    return [*out, check_table(found)]


def summary(found: dict[str, Any]) -> str:
    raters, main = found["raters"], found["kept"] or found["all"]
    text = (
        f"{main['raters']} raters compared videos of {main['prompts']} prompts side by side without knowing their "
        f"sources: {main['comparisons']} comparisons, {main['median_seconds']:.1f} seconds each (median)."
    )
    if raters["left_out"]:
        text += f" {raters['left_out']} more failed the attention checks and are left out."
    if not found["kept"]:
        text += " Nobody passed the attention checks: what follows is of those who failed, and should not be relied on."
    if main["repeats"]["of"]:
        text += f" On repeated pairs {main['repeats']['same']} of {main['repeats']['of']} verdicts were the same."
    if main["left_share"]:
        value, low, high = (100 * one for one in main["left_share"])
        text += f" Where a side was chosen, it was the left in {value:.0f} % [{low:.0f}, {high:.0f}]."
    return text


def page(found: dict[str, Any], command: str) -> Page:
    main = found["kept"] or found["all"]
    headlines = [
        Headline(
            f"{pair['first']} vs. {pair['second']}: {one['name'].lower()}",
            f"{100 * pair['rate']['value']:.1f} %" if pair["rate"] else "–",
            f"95 % interval {100 * pair['rate']['low']:.1f} to {100 * pair['rate']['high']:.1f}"
            if pair["rate"]
            else "",
        )
        for one in main["dimensions"].values()
        for pair in one["pairs"][:1]
    ]
    text = "\n\n".join([summary(found), *(f"Note: {one}." for one in found["notes"])])
    return Page(found["title"], text, headlines, tables=tables(found), footer=f"{command}\nplan {found['plan']}")


def markdown(found: dict[str, Any]) -> str:
    parts = [f"# {found['title']}", summary(found), *(f"Note: {one}." for one in found["notes"])]
    for table in tables(found):
        rows = [table.header, ["---"] * len(table.header), *table.rows]
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        parts += [f"## {table.title}", "\n".join(lines), *([table.note] if table.note else [])]
    return "\n\n".join(parts) + "\n"
