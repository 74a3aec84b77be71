// The number of a picture to begin with is sent; the server answers with its page.
element.addEventListener("click", (event) => {
  const button = event.target.closest("[data-scene]");
  if (button) trigger("click", { scene: button.dataset.scene });
});
element.dataset.ready = "true"; // for tests
