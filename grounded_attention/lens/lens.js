// Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
// The page of `look`: reads the page's own data block and nothing else. Text from data is only ever set as text.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("lens-data").textContent);
  const root = document.getElementById("lenses");
  const STRENGTH = 0.62; // of a colour over the picture

  function make(parent, name, attributes = {}, text = "") {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text) element.textContent = text;
    parent.append(element);
    return element;
  }
  // A float32 scale for each row, then a byte for each value, in 255 steps of the scale.
  function unpack(text, rows, columns) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const scales = new Float32Array(bytes.buffer, 0, rows);
    return (row) => Float32Array.from({ length: columns }, (_, c) =>
      (scales[row] * bytes[4 * rows + row * columns + c]) / 255);
  }
  // Square roots of shares on one scale of colours, as in the pictures of this project.
  function colour(part) {
    const place = Math.sqrt(Math.min(Math.max(part, 0), 1)) * (data.colours.length - 1), low = Math.floor(place);
    const next = data.colours[Math.min(low + 1, data.colours.length - 1)];
    return data.colours[low].map((value, n) => value + (place - low) * (next[n] - value));
  }

  function build(lens) {
    const box = make(root, "section", { class: "lens" });
    if (lens.name) make(box, "h2", {}, lens.name);
    // It opens on the longest word of the answer, which more likely names something than its first.
    const length = (word) => word.answer * (word.span[1] - word.span[0]);
    const longest = Math.max(...lens.words.map(length));
    const state = { word: lens.words.findIndex((word) => length(word) === longest), kept: true, choice: 0 };
    const pictures = make(box, "div", { class: lens.images.length > 2 ? "pictures many" : "pictures" });
    const drawn = lens.images.map((image, n) => {
      const figure = make(pictures, "figure");
      const canvas = make(figure, "canvas", { width: image.width, height: image.height, role: "img" });
      const caption = lens.images.length > 1 ? make(figure, "figcaption", {}, image.label) : null;
      const { rows, columns } = lens.grids[n];
      const values = unpack(lens.maps[n], lens.choices.length * lens.words.length, rows * columns);
      const picture = new Image();
      picture.addEventListener("load", () => paint());
      picture.src = image.source;
      return { canvas, caption, picture, values, rows, columns, frame: lens.grids[n].frame };
    });
    const said = make(box, "p", { class: "said", "aria-live": "polite" });
    const buttons = [];
    lens.texts.forEach((text, sentence) => {
      const answer = sentence === lens.texts.length - 1;
      const line = make(box, "p", { class: answer ? "text answer" : "text" });
      make(line, "b", {}, answer ? "answer" : "prompt");
      let place = 0;
      if (answer && !text.trim()) line.append("(no words)");
      const characters = [...text]; // spans count characters and not code units
      lens.words.forEach((word, n) => {
        const [start, end, where] = word.span;
        if (where !== sentence) return;
        line.append(characters.slice(place, start).join(""));
        const button = make(line, "button", { class: "word", type: "button" }, characters.slice(start, end).join(""));
        button.addEventListener("mouseenter", () => show(n, false));
        button.addEventListener("focus", () => show(n, true));
        button.addEventListener("click", () => show(n, true));
        buttons[n] = button;
        place = end;
      });
      line.append(characters.slice(place).join(""));
      line.addEventListener("mouseleave", () => show(state.held ?? state.word, true));
    });
    box.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
      const next = move && event.target.classList.contains("word") && buttons[buttons.indexOf(event.target) + move];
      if (next) { event.preventDefault(); next.focus(); }
    });
    const tools = make(box, "div", { class: "tools" });
    if (lens.choices.length > 1) {
      const label = make(tools, "label", {}, "heads ");
      const select = make(label, "select");
      lens.choices.forEach((name, n) => make(select, "option", { value: n }, name));
      select.addEventListener("change", () => { state.choice = Number(select.value); paint(); });
    }
    const download = make(tools, "button", { type: "button" }, "save picture");
    download.addEventListener("click", () => {
      const link = make(tools, "a", { href: drawn[lens.words[state.word].image].canvas.toDataURL("image/png") });
      link.download = "lens.png";
      link.click();
      link.remove();
    });
    make(box, "p", { class: "about" }, lens.about);

    function show(n, keep) {
      if (!lens.words.length) return;
      state.word = n;
      if (keep) state.held = n;
      paint();
    }
    function paint() {
      const word = lens.words[state.word];
      buttons.forEach((button, n) => button.setAttribute("aria-pressed", String(n === state.word)));
      const cells = drawn.map((one) => one.values(state.choice * lens.words.length + state.word));
      const tops = word ? cells.map((values) => Math.max(...values, 1e-12)) : [];
      // Frames of a video are compared with each other: one scale.
      drawn.forEach((one, n) => paintImage(one, n, word, cells[n], lens.frames ? Math.max(...tops) : tops[n]));
      if (!word) { said.textContent = "No words."; return; }
      const percent = (share) => `${(100 * share).toFixed(1)}%`, several = word.share.length > 1;
      drawn.forEach(({ caption }, n) => {
        if (caption) caption.textContent = `${lens.images[n].label}: ${percent(word.share[n])}`;
      });
      const sum = percent(word.share.reduce((one, other) => one + other, 0));
      const most = several ? `, most to ${lens.images[word.image].label}` : "";
      said.textContent =
        `“${buttons[state.word].textContent}” gives to the image${several ? "s" : ""} ${sum} of its attention${most}.`;
    }
    function paintImage({ canvas, picture, rows, columns, frame }, n, word, cells, top) {
      const context = canvas.getContext("2d"), { width, height } = canvas;
      if (!picture.complete || !picture.naturalWidth) return;
      context.drawImage(picture, 0, 0, width, height);
      if (!word) return;
      const small = document.createElement("canvas");
      small.width = columns;
      small.height = rows;
      const pixels = new ImageData(columns, rows);
      cells.forEach((value, c) => pixels.data.set([...colour(value / top), 255], 4 * c));
      small.getContext("2d").putImageData(pixels, 0, 0);
      const [x1, y1, x2, y2] = frame;
      context.globalAlpha = STRENGTH;
      context.imageSmoothingEnabled = true;
      context.drawImage(small, x1 * width, y1 * height, (x2 - x1) * width, (y2 - y1) * height);
      context.globalAlpha = 1;
      const outline = ([left, up, right, down], colour) => {
        for (const [style, size] of [["#fff", 5], [colour, 2.5]]) {
          context.strokeStyle = style;
          context.lineWidth = size;
          context.strokeRect(left * width, up * height, (right - left) * width, (down - up) * height);
        }
      };
      if (n === word.image && state.choice === 0) outline(word.box, "#d55e00");
      context.setLineDash([8, 6]);
      if (n === 0) lens.boxes.forEach((said) => outline(said, "#0072b2"));
      context.setLineDash([]);
      canvas.setAttribute("aria-label", `${lens.images[n].label}, coloured by the attention of a word`);
    }
    show(state.word, true);
  }
  data.lenses.forEach(build);
  root.dataset.ready = "true";
})();
