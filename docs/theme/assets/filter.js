// A box above the long lists of the reference: it hides the rows and sections without its words.
document.addEventListener("DOMContentLoaded", () => {
  const article = document.querySelector("article.md-content__inner");
  if (!article || !/\/reference\/(messages|json|checks|doctor|settings)\//.test(location.pathname)) return;
  const box = document.createElement("input");
  box.type = "search";
  box.className = "filter";
  box.placeholder = "Show only what has these words";
  box.setAttribute("aria-label", box.placeholder);
  article.querySelector("h1").after(box);
  // A section is a heading of the third level with what follows it; outside of one, a row of a table is shown or hidden alone.
  const parts = [];
  for (const heading of article.querySelectorAll("h3")) {
    const part = [heading];
    for (let next = heading.nextElementSibling; next && !/^H[1-3]$/.test(next.tagName); next = next.nextElementSibling) part.push(next);
    parts.push(part);
  }
  const inSection = new Set(parts.flat());
  for (const row of article.querySelectorAll("tbody tr"))
    if (![...inSection].some((element) => element.contains(row))) parts.push([row]);
  const texts = parts.map((part) => part.map((element) => element.textContent).join(" ").toLowerCase());
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/);
    parts.forEach((part, index) => {
      const isShown = words.every((word) => texts[index].includes(word));
      part.forEach((element) => (element.hidden = !isShown));
    });
  });
});
