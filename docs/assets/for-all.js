// What the theme builds, mended for those who use a keyboard or a screen reader.

// The copy button of every code block is in a <nav>: a list of landmarks would have dozens without a name.
new MutationObserver(() => {
  for (const place of document.querySelectorAll("nav.md-code__nav:not([role])")) place.setAttribute("role", "none");
}).observe(document.documentElement, { childList: true, subtree: true });

// Every heading with others below it is a landmark in the table of contents, and two of one name cannot be told apart.
addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll(".md-nav--secondary nav")) {
    place.setAttribute("role", "none");
    place.removeAttribute("aria-label");
  }
});

// A table wider than the screen is scrolled by arrow keys once it can have the focus.
function reach() {
  for (const place of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (place.scrollWidth > place.clientWidth) place.tabIndex = 0;
    else place.removeAttribute("tabindex");
  }
}
addEventListener("load", reach);
addEventListener("resize", reach);
