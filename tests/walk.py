"""An HTML page walked through: every element and text, and whether all is closed in order."""

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Walk(HTMLParser):
    """Every element and text of a page, and a stack that must close in order."""

    def __init__(self, html):
        super().__init__()
        self.stack, self.seen, self.texts = [], [], []
        self.feed(html)
        self.close()
        assert not self.stack, f"never closed: {self.stack}"

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"attribute twice on {tag}: {names}"
        self.seen.append((tag, dict(attrs)))
        self.stack += [] if tag in VOID else [tag]

    def handle_endtag(self, tag):
        assert self.stack, f"</{tag}> closes nothing"
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.seen if name == tag]
