// Sends what a button carries; the server answers with a new picture. Afterwards the same button has the focus.
let chosen = "";
element.addEventListener("click", (event) => {
  const button = event.target.closest("[data-word], [data-cell], [data-scene]");
  if (!button) return;
  const { word, cell, scene } = button.dataset;
  chosen = button.tagName !== "BUTTON" ? "" : word !== undefined ? `[data-word="${word}"]` : `[data-cell="${cell}"]`;
  trigger("click", { word: word ?? "", cell: cell ?? "", scene: scene ?? "" });
});
element.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const words = [...element.querySelectorAll("[data-word]")];
  const next = step && words[words.indexOf(event.target.closest("[data-word]")) + step];
  if (next && event.target.closest("[data-word]")) { event.preventDefault(); next.focus(); next.click(); }
});
element.dataset.ready = "true"; // for tests
watch("value", () => {
  if (chosen && document.activeElement === document.body) element.querySelector(chosen)?.focus({ preventScroll: true });
});
