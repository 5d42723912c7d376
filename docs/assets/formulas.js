// Formulas of a page: arithmatex marks them, KaTeX draws them. Both come with the site, so it works without a network.
document.addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll(".arithmatex")) {
    const text = place.textContent.trim(); // \( … \) within a line, \[ … \] on its own
    katex.render(text.slice(2, -2), place, {
      displayMode: text.startsWith("\\["),
      throwOnError: false,
    });
  }
});
