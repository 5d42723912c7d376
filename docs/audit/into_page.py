"""Put the tables that `sage-grpo rewards audit` wrote into docs/rewards-audit.md: `make audit` runs both."""

import re
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
PAGE = HERE.parent / "rewards-audit.md"
SHOWN = "made"  # whose copies the page shows


def main() -> None:
    def table(found: re.Match[str]) -> str:
        return f"{found[1]}\n{(HERE / found[2] / 'audit.md').read_text()}{found[3]}"

    for sheet in HERE.glob("*/copies.png"):  # megabytes as PNG
        if sheet.parent.name == SHOWN:
            with Image.open(sheet) as picture:
                picture.thumbnail((900, 9000))
                picture.convert("RGB").save(sheet.with_suffix(".jpg"), quality=82)
        sheet.unlink()
    page = re.sub(r"(<!-- table: (\w+) -->)\n.*?(<!-- end -->)", table, PAGE.read_text(), flags=re.DOTALL)
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
