// Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
// The attention explorer: reads the page's own data block and nothing else. Text from data is only ever set as text.
"use strict";
(() => {
  const root = document.getElementById("explorer");
  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  const SVG = "http" + "://www.w3.org/2000/svg"; // a name, not an address: nothing is fetched
  const SHOWN = 0.1; // regions and words with at least this share carry their number
  const state = { example: 0, layer: data.layers.length - 1, head: 0, kind: "word", index: 0 };
  const panes = data.checkpoints.slice(0, 2).map((_, n) => ({ checkpoint: n }));

  // Values: a float32 scale for each row, then a byte for each value, in 255 steps of the scale.
  function unpack(text, rows, columns) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const count = data.layers.length * data.heads * rows;
    return { scales: new Float32Array(bytes.buffer, 0, count), steps: bytes.subarray(4 * count), rows, columns };
  }
  for (const example of data.examples) {
    const [words, regions] = [example.words.length, example.boxes.length];
    example.to = example.to.map((text) => unpack(text, words, regions));
    example.back = example.back.map((text) => text && unpack(text, regions, words));
  }
  function addRow(into, array, layer, head, row) {
    const place = (layer * data.heads + head) * array.rows + row;
    for (let c = 0; c < array.columns; c++) {
      into[c] += (array.scales[place] * array.steps[place * array.columns + c]) / 255;
    }
  }
  // What a word or region gives to each column out of all its attention; head -1 is the mean of the heads.
  function attention(array, layer, head, row) {
    const values = new Float64Array(array.columns);
    const heads = head < 0 ? [...Array(data.heads).keys()] : [head];
    for (const h of heads) addRow(values, array, layer, h, row);
    return values.map((v) => v / heads.length);
  }
  function spread(values) {
    const share = values.reduce((a, b) => a + b, 0);
    return { share, weights: values.map((v) => (share > 0 ? v / share : 0)), top: values.indexOf(Math.max(...values)) };
  }

  function make(parent, name, attributes = {}, text = "") {
    const inSvg = name === "svg" || parent.namespaceURI === SVG;
    const element = inSvg ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text) element.textContent = text;
    parent.append(element);
    return element;
  }
  const percent = (value) => (value > 0 && value < 0.005 ? "< 1" : Math.round(100 * value)) + "%";
  const example = () => data.examples[state.example];
  const word = (n) => example().caption.slice(...example().words[n]);
  const region = (n) => `region ${n}` + (example().labels[n] ? ` (${example().labels[n]})` : "");
  const goldOf = (n) => (example().gold ? example().gold[n] : []);

  // Controls
  const picker = root.querySelector("[data-control=example]");
  const layerSlider = root.querySelector("[data-control=layer]");
  const headSlider = root.querySelector("[data-control=head]");
  data.examples.forEach((one, n) => make(picker, "option", { value: n }, `${n + 1}. ${one.caption}`));
  picker.parentElement.hidden = data.examples.length < 2;
  layerSlider.max = data.layers.length - 1;
  headSlider.max = data.heads;
  picker.addEventListener("change", () => openExample(Number(picker.value)));
  layerSlider.addEventListener("input", () => show({ layer: Number(layerSlider.value) }));
  headSlider.addEventListener("input", () => show({ head: Number(headSlider.value) }));

  // The last word of the first phrase that means a region: mostly its noun.
  function namingWord() {
    const gold = (example().gold || []).map(String);
    let place = Math.max(gold.findIndex((regions) => regions), 0);
    while (gold[place] && gold[place + 1] === gold[place]) place++;
    return place;
  }
  // The head that the page names, or that gives the largest part of the attention of the naming word to gold.
  function openBestHead() {
    if (data.best) {
      Object.assign(state, { layer: data.best[1], head: data.best[2] + 1 });
      if (panes.length > 1) panes[1].checkpoint = data.best[0] || 1;
      return;
    }
    const word = namingWord();
    let best = 0;
    example().to.forEach((array, checkpoint) => {
      for (let layer = 0; layer < data.layers.length; layer++) {
        for (let head = 0; head < data.heads; head++) {
          const { weights } = spread(attention(array, layer, head, word));
          const value = goldOf(word).reduce((sum, n) => sum + weights[n], 0);
          if (value <= best) continue;
          best = value;
          Object.assign(state, { layer, head: head + 1 });
          if (panes.length > 1) panes[1].checkpoint = checkpoint || 1;
        }
      }
    });
  }

  function openExample(number) {
    state.example = number;
    Object.assign(state, { kind: "word", index: namingWord() });
    panes.forEach(build);
    show({});
  }

  // Panes: built once an example, then only painted
  function buildFrame(pane, number) {
    pane.box = make(root.querySelector(".panes"), "section", { class: "pane", "data-pane": number });
    if (data.checkpoints.length > 1) {
      const label = make(pane.box, "label", {}, "checkpoint");
      const choice = make(label, "select", { "data-control": "checkpoint" });
      data.checkpoints.forEach((name, n) => make(choice, "option", { value: n }, name));
      choice.value = pane.checkpoint;
      choice.addEventListener("change", () => { pane.checkpoint = Number(choice.value); show({}); });
    } else if (data.checkpoints[0]) make(pane.box, "h3", {}, data.checkpoints[0]);
    pane.body = make(pane.box, "div");
  }
  function build(pane) {
    pane.body.replaceChildren();
    const caption = make(pane.body, "div", { class: "caption", role: "group", "aria-label": "words of the caption" });
    pane.words = example().words.map((_, n) => buildWord(caption, n));
    caption.addEventListener("keydown", (event) => step(event, pane.words));
    buildScene(pane);
    pane.said = make(pane.body, "p", { class: "said", "aria-live": "polite" });
    pane.ranks = make(make(pane.body, "div", { class: "wide" }), "table", { class: "ranks" });
    buildMap(pane);
  }
  function buildWord(caption, n) {
    const button = make(caption, "button", { class: "word", type: "button", "data-word": n }, word(n));
    make(button, "span", { class: "share" });
    button.addEventListener("click", () => show({ kind: "word", index: n }));
    return button;
  }
  function step(event, words) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const place = words.indexOf(event.target.closest(".word"));
    const next = move && words[place + move];
    if (next) { event.preventDefault(); next.focus(); next.click(); }
  }
  function buildScene(pane) {
    const { width, height, source } = example().image;
    const scene = make(pane.body, "svg", { class: "scene", viewBox: `0 0 ${width} ${height}`, role: "group" });
    scene.setAttribute("aria-label", "image with its regions");
    make(scene, "image", { href: source, width, height });
    const area = ([x1, y1, x2, y2]) => (x2 - x1) * (y2 - y1);
    const order = example().boxes.map((_, n) => n).sort((a, b) => area(example().boxes[b]) - area(example().boxes[a]));
    pane.regions = [];
    for (const n of order) pane.regions[n] = buildRegion(scene, n); // small ones above large ones, to be clicked
    pane.over = make(scene, "g");
  }
  function rectangle(n, outset = 0) {
    const { width, height } = example().image, [x1, y1, x2, y2] = example().boxes[n];
    return { x: x1 * width - outset, y: y1 * height - outset,
      width: Math.max((x2 - x1) * width + 2 * outset, 0), height: Math.max((y2 - y1) * height + 2 * outset, 0) };
  }
  function buildRegion(scene, n) {
    const asked = example().back[0] ? { role: "button", tabindex: 0 } : {}; // else a click would show nothing
    const group = make(scene, "g", { class: "region", "data-region": n, ...asked });
    make(group, "rect", { class: "edge", ...rectangle(n) });
    make(group, "rect", { class: "line", ...rectangle(n) });
    const choose = () => example().back[0] && show({ kind: "region", index: n });
    group.addEventListener("click", choose);
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); }
    });
    return group;
  }
  function buildMap(pane) {
    const [layers, heads] = [data.layers.length, data.heads];
    const details = make(pane.body, "details", { open: "" });
    pane.legend = make(details, "summary");
    const box = `-1.6 -0.2 ${heads + 1.8} ${layers + 1.2}`;
    const map = make(details, "svg", { class: "map", viewBox: box, "aria-hidden": "true" });
    pane.cells = [];
    for (let layer = 0; layer < layers; layer++) {
      const y = layers - 1 - layer;
      make(map, "text", { x: -0.2, y: y + 0.65, "text-anchor": "end" }, data.layers[layer].replace("cross ", ""));
      for (let head = 0; head < heads; head++) {
        const cell = make(map, "rect", { x: head, y, width: 1, height: 1, "data-cell": `${layer} ${head}` });
        make(cell, "title");
        cell.addEventListener("click", () => show({ layer, head: head + 1 }));
        pane.cells.push({ cell, layer, head });
      }
    }
    for (let head = 0; head < heads; head++) {
      make(map, "text", { x: head + 0.5, y: layers + 0.55, "text-anchor": "middle" }, String(head));
    }
  }

  // Painting
  function show(changes) {
    Object.assign(state, changes);
    layerSlider.value = state.layer;
    headSlider.value = state.head;
    root.querySelector("[data-output=layer]").textContent = data.layers[state.layer];
    root.querySelector("[data-output=head]").textContent = state.head ? state.head - 1 : "mean over heads";
    const where = `layer ${data.layers[state.layer]}, ` + (state.head ? `head ${state.head - 1}` : "mean over heads");
    layerSlider.setAttribute("aria-valuetext", `layer ${data.layers[state.layer]}`);
    headSlider.setAttribute("aria-valuetext", state.head ? `head ${state.head - 1}` : "mean over heads");
    for (const pane of panes) paint(pane, where);
  }
  function source(pane) {
    return (state.kind === "word" ? example().to : example().back)[pane.checkpoint];
  }
  function paint(pane, where) {
    const found = spread(attention(source(pane), state.layer, state.head - 1, state.index));
    const toRegions = state.kind === "word";
    paintWords(pane, toRegions ? null : found);
    paintRegions(pane, toRegions ? found : null);
    paintText(pane, found, where);
    paintMap(pane);
  }
  function paintWords(pane, found) {
    pane.words.forEach((button, n) => {
      const weight = found ? found.weights[n] : 0;
      const gold = state.kind === "region" && goldOf(n).includes(state.index);
      button.setAttribute("aria-pressed", String(!found && n === state.index));
      button.classList.toggle("gold", gold);
      button.classList.toggle("top", Boolean(found) && n === found.top);
      button.style.backgroundColor = found ? `rgba(213, 94, 0, ${(0.6 * weight).toFixed(3)})` : "";
      const labelled = found && (n === found.top || weight >= SHOWN);
      button.querySelector(".share").textContent = labelled ? percent(weight) : "";
    });
  }
  // As `attention_overlay` of the figures: square roots of shares on one scale of colours.
  const colour = (part) => `rgba(${onScale(Math.sqrt(part))}, 0.4)`;
  function onScale(part) {
    const place = Math.min(part, 1) * (data.colours.length - 1), low = Math.floor(place);
    const next = data.colours[Math.min(low + 1, data.colours.length - 1)];
    return data.colours[low].map((value, n) => Math.round(value + (place - low) * (next[n] - value)));
  }
  function paintRegions(pane, found) {
    pane.over.replaceChildren();
    const largest = found ? Math.max(found.weights[found.top], 1e-12) : 1;
    pane.regions.forEach((group, n) => {
      const weight = found ? found.weights[n] : 0, top = Boolean(found) && n === found.top;
      const lit = Boolean(found) && (top || weight >= 0.02);
      const chosen = state.kind === "region" && n === state.index;
      for (const [name, on] of Object.entries({ lit, top, chosen })) group.classList.toggle(name, on);
      group.setAttribute("aria-pressed", String(chosen));
      group.setAttribute("aria-label", region(n) + (found ? `, ${percent(weight)}` : ""));
      group.dataset.share = found ? weight.toFixed(5) : "";
      const line = group.querySelector(".line");
      line.style.fill = found ? colour(weight / largest) : "";
      line.style.strokeWidth = lit ? `${(1.5 + 3.5 * weight).toFixed(2)}px` : "";
      line.style.strokeOpacity = lit ? (top ? 1 : 0.35 + 0.65 * weight).toFixed(2) : "";
    });
    const gold = state.kind === "word" ? goldOf(state.index) : [];
    for (const n of gold) make(pane.over, "rect", { class: "goldbox", "data-gold": n, ...rectangle(n, 4) });
    if (!found) return;
    found.weights.forEach((weight, n) => { if (n !== found.top && weight >= SHOWN) writePercent(pane, n, weight); });
    writePercent(pane, found.top, found.weights[found.top]);
  }
  function writePercent(pane, n, weight) {
    const box = rectangle(n), text = percent(weight), wide = 9 * text.length + 8;
    const x = Math.min(Math.max(box.x, 0), example().image.width - wide);
    const y = box.y >= 22 ? box.y - 20 : Math.min(box.y + 2, example().image.height - 20);
    const label = make(pane.over, "g", { class: "percent", "data-percent": n });
    make(label, "rect", { x, y, width: wide, height: 18, rx: 2 });
    make(label, "text", { x: x + 4, y: y + 13.5 }, text);
  }
  function paintText(pane, found, where) {
    const name = state.kind === "word" ? `“${word(state.index)}”` : region(state.index);
    const [others, call] = state.kind === "word" ? ["regions", region] : ["words", (n) => `“${word(n)}”`];
    const gold = state.kind === "word" ? goldOf(state.index)
      : example().words.map((_, n) => n).filter((n) => goldOf(n).includes(state.index));
    const verdict = !gold.length ? "" : gold.includes(found.top) ? " ✓ gold" : " ✗ not gold";
    pane.said.textContent = `${name}, ${where}: ${percent(found.share)} of the attention goes to the ${others}; ` +
      `of that, ${percent(found.weights[found.top])} to ${call(found.top)}.${verdict}`;
    pane.ranks.replaceChildren();
    const head = make(pane.ranks, "tr");
    make(head, "th", { scope: "col" }, `most attended ${others}`);
    make(head, "th", { scope: "col", class: "number" }, `share of that on ${others}`);
    const order = [...found.weights.keys()].sort((a, b) => found.weights[b] - found.weights[a] || a - b);
    for (const n of order.slice(0, 5)) {
      const row = make(pane.ranks, "tr", { "data-rank": n });
      make(row, "td", {}, call(n) + (gold.includes(n) ? " · gold" : ""));
      make(row, "td", { class: "number" }, (100 * found.weights[n]).toFixed(1) + "%");
    }
  }
  function paintMap(pane) {
    const gold = state.kind === "word" ? goldOf(state.index) : [];
    const onGold = gold.length > 0, others = state.kind === "word" ? "regions" : "words";
    pane.legend.textContent = onGold
      ? "By layer (up) and head: share of the attention on regions that is on gold (dark 0, light 1)"
      : `By layer (up) and head: share of the attention that goes to ${others} (dark 0, light 1)`;
    for (const { cell, layer, head } of pane.cells) {
      const { share, weights } = spread(attention(source(pane), layer, head, state.index));
      const value = onGold ? gold.reduce((sum, n) => sum + weights[n], 0) : share;
      cell.style.fill = `rgb(${onScale(value)})`;
      const here = layer === state.layer && (state.head === 0 || head === state.head - 1);
      cell.classList.toggle("here", here);
      if (here) cell.parentNode.append(cell); // drawn last, so that its neighbours do not cover its edge
      cell.firstChild.textContent = `layer ${data.layers[layer]}, head ${head}: ${percent(value)}`;
    }
  }

  openBestHead();
  panes.forEach(buildFrame);
  openExample(0);
  root.dataset.ready = "true";
})();
