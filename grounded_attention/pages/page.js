// Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
// The explorer of attention: reads the page's own data block and nothing else. Text from data is only ever set as text.
"use strict";
(() => {
  const root = document.querySelector(".explorers");
  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  // A name, not an address: nothing is fetched.
  const SVG = "http" + "://www.w3.org/2000/svg";
  // Of a colour over the picture, as in `attention_overlay`.
  const MIXED = 0.55;
  // Regions with such a share carry their number, or a strong outline.
  const SHOWN = 0.1, LIT = 0.02;
  // From such a probability that a word names nothing in the image it is marked.
  const DOUBTED = 0.5;
  const ORANGE = "#d55e00", GOLD = "#0072b2";

  function make(parent, name, attributes = {}, text = "") {
    const inSvg = name === "svg" || parent.namespaceURI === SVG;
    const element = inSvg ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text) element.textContent = text;
    parent.append(element);
    return element;
  }
  const on = (element, event, react) => element.addEventListener(event, react);
  const percent = (value) => (value > 0 && value < 0.005 ? "< 1" : Math.round(100 * value)) + "%";
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const times = (count) => [...Array(count).keys()];
  function colour(part) {
    const place = Math.min(Math.max(part, 0), 1) * (data.colours.length - 1), low = Math.floor(place);
    const next = data.colours[Math.min(low + 1, data.colours.length - 1)];
    return data.colours[low].map((value, n) => Math.round(value + (place - low) * (next[n] - value)));
  }
  // Square roots of shares of the largest, as in the pictures of this project.
  const shade = (value, top) => colour(Math.sqrt(value / Math.max(top, 1e-12)));
  function spread(values) {
    const share = sum(values);
    return { share, weights: values.map((v) => (share > 0 ? v / share : 0)), top: values.indexOf(Math.max(...values)) };
  }

  function open(told) {
    const box = make(root, "section", { class: "explorer" });
    const depth = told.layers.length, wide = told.heads.length;
    const state = { example: 0, layer: depth - 1, head: 0, kind: "word", index: 0 };
    const panes = told.models.slice(0, 2).map((_, n) => ({ model: n }));
    // What a pointer that goes away leaves.
    let held = null;
    const now = () => told.examples[state.example];
    // Spans count characters and not code units.
    const letters = (n) => [...now().texts[n]];
    const word = (n) => letters(now().words[n][2]).slice(...now().words[n].slice(0, 2)).join("");
    const region = (n) => `region ${n}` + (now().labels[n] ? ` (${now().labels[n]})` : "");
    const goldOf = (n) => (now().gold ? now().gold[n] : []);
    const boxes = () => now().pictures[0].boxes;

    // Values: a float32 scale for each row, then a byte for each value, in 255 steps of the scale.
    function unpack(text, rows, columns) {
      const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0)), count = depth * wide;
      const scales = new Float32Array(bytes.buffer, 0, count * rows), steps = bytes.subarray(4 * count * rows);
      return (place) => Float64Array.from(steps.subarray(place * columns, (place + 1) * columns), (s) => (scales[place] * s) / 255);
    }
    for (const one of told.examples) {
      const cells = one.pictures.map(({ boxes, grid }) => (boxes ? boxes.length : grid.rows * grid.columns));
      one.to = one.to.map((maps) => maps.map((text, n) => unpack(text, one.words.length, cells[n])));
      one.back = one.back.map((text) => text && unpack(text, cells[0], one.words.length));
    }
    // What a word or region gives to each place out of all its attention; head -1 is the mean of the heads.
    function attention(pane, layer, head, index, picture = 0) {
      const words = state.kind === "word", rows = words ? now().words.length : boxes().length;
      const source = words ? now().to[pane.model][picture] : now().back[pane.model];
      const heads = head < 0 ? times(wide) : [head];
      const found = heads.map((h) => source((layer * wide + h) * rows + index));
      return found[0].map((_, place) => sum(found.map((values) => values[place])) / heads.length);
    }

    // Controls
    if (told.title) make(box, "h2", {}, told.title);
    const controls = make(box, "div", { class: "controls" });
    const picker = make(make(controls, "label", {}, "image and text "), "select", { "data-control": "example" });
    told.examples.forEach((one, n) => make(picker, "option", { value: n }, `${n + 1}. ${one.texts[0]}`));
    picker.parentElement.hidden = told.examples.length < 2;
    on(picker, "change", () => openExample(Number(picker.value)));
    const layers = slider("layer", depth - 1, (n) => told.layers[n]);
    const heads = slider("head", wide, (n) => (n ? told.heads[n - 1] : "mean over heads"));
    const list = make(box, "div", { class: "panes" });
    function slider(name, max, say) {
      const label = make(controls, "label", {}, `${name} `), output = make(label, "output", { "data-output": name });
      const range = make(label, "input", { type: "range", min: 0, max, step: 1, "data-control": name });
      label.hidden = max < (name === "head" ? 2 : 1);
      on(range, "input", () => show({ [name]: Number(range.value) }));
      return (value) => {
        range.value = value;
        output.textContent = say(value);
        range.setAttribute("aria-valuetext", `${name} ${say(value)}`);
      };
    }

    // It opens on the last word of the first phrase that means a region, mostly its noun, or else on a content word.
    function namingWord() {
      const gold = (now().gold || []).map(String);
      let place = gold.findIndex((regions) => regions);
      while (place >= 0 && gold[place] && gold[place + 1] === gold[place]) place++;
      return place >= 0 ? place : now().first;
    }
    // The head that the page names, or that gives the largest part of the attention of the naming word to gold.
    function openBestHead() {
      const index = namingWord();
      const found = told.best ? [told.best] : [];
      let best = 0;
      if (!told.best && goldOf(index).length) told.models.forEach((_, model) => times(depth).forEach((layer) =>
        times(wide).forEach((head) => {
          const { weights } = spread(attention({ model }, layer, head, index)), value = sum(goldOf(index).map((n) => weights[n]));
          if (value > best) { best = value; found[0] = [model, layer, head]; }
        })));
      if (!found.length) return;
      const [model, layer, head] = found[0];
      Object.assign(state, { layer, head: head + 1 });
      if (panes.length > 1) panes[1].model = model || 1;
    }
    function openExample(number) {
      state.example = number;
      held = null;
      Object.assign(state, { kind: "word", index: namingWord() });
      panes.forEach(build);
      show({});
    }

    // Panes: built once an example, then only painted
    function frame(pane, number) {
      pane.box = make(list, "section", { class: "pane", "data-pane": number });
      if (told.models.length > 1) {
        const choice = make(make(pane.box, "label", {}, "model"), "select", { "data-control": "checkpoint" });
        told.models.forEach((name, n) => make(choice, "option", { value: n }, name));
        choice.value = pane.model;
        on(choice, "change", () => { pane.model = Number(choice.value); show({}); });
      } else if (told.models[0]) make(pane.box, "h3", {}, told.models[0]);
      pane.body = make(pane.box, "div");
    }
    function build(pane) {
      pane.body.replaceChildren();
      const several = now().pictures.length;
      const pictures = make(pane.body, "div", { class: several > 2 ? "pictures many" : "pictures" });
      pane.pictures = now().pictures.map((one, n) => buildPicture(pane, pictures, one, several > 1, n));
      pane.said = make(pane.body, "p", { class: "said", "aria-live": "polite" });
      pane.words = [];
      now().texts.forEach((_, n) => buildText(pane, n));
      const save = make(pane.body, "button", { type: "button" }, "save picture");
      on(save, "click", () => {
        const link = document.createElement("a");
        Object.assign(link, { href: pane.pictures[pane.most || 0].canvas.toDataURL(), download: "attention.png" }).click();
      });
      pane.ranks = make(make(pane.body, "div", { class: "wide" }), "table", { class: "ranks" });
      pane.cells = [];
      if (told.layers[0]) buildMap(pane);
      if (told.about) make(pane.body, "p", { class: "note" }, told.about);
    }
    function buildText(pane, sentence) {
      const role = now().roles[sentence] || "", line = make(pane.body, "p", { class: `text ${role}` });
      if (role) make(line, "b", {}, role);
      const all = letters(sentence);
      if (!all.join("").trim()) line.append("(no words)");
      let place = 0;
      now().words.forEach(([start, end, where], n) => {
        if (where !== sentence) return;
        line.append(all.slice(place, start).join(""));
        const button = make(line, "button", { class: "word", type: "button", "data-word": n }, word(n));
        make(button, "span", { class: "share" });
        const doubt = (now().doubts || {})[n];
        if (doubt >= DOUBTED) {
          button.classList.add("doubted");
          make(button, "span", { class: "share" }, `${percent(doubt)}?`);
          button.title = `names nothing in the image: ${percent(doubt)}`;
        }
        on(button, "mouseenter", () => { held ??= { kind: state.kind, index: state.index }; show({ kind: "word", index: n }); });
        for (const event of ["focus", "click"]) on(button, event, () => choose("word", n));
        pane.words[n] = button;
        place = end;
      });
      line.append(all.slice(place).join(""));
      on(line, "mouseleave", () => { if (held) show(held); held = null; });
      on(line, "keydown", (event) => {
        const move = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
        const next = move && pane.words[pane.words.indexOf(event.target) + move];
        if (next) { event.preventDefault(); next.focus(); }
      });
    }
    function choose(kind, index) {
      held = null;
      show({ kind, index });
    }
    function buildPicture(pane, parent, one, named, n) {
      const figure = make(parent, "figure", { class: one.boxes ? "regions" : "" }), picture = new Image();
      const canvas = make(figure, "canvas", { width: one.width, height: one.height, role: "img" });
      canvas.setAttribute("aria-label", `${one.label || "image"}, coloured by attention`);
      on(picture, "load", () => paint(pane));
      picture.src = one.source;
      if (one.boxes && n === 0) buildRegions(pane, figure, one);
      return { ...one, canvas, picture, caption: named && make(figure, "figcaption", {}, one.label) };
    }
    function buildRegions(pane, figure, { width, height, boxes }) {
      const scene = make(figure, "svg", { class: "scene", viewBox: `0 0 ${width} ${height}`, role: "group" });
      scene.setAttribute("aria-label", "image with its regions");
      const area = ([x1, y1, x2, y2]) => (x2 - x1) * (y2 - y1);
      // Else a click would show nothing.
      const asked = now().back[0] ? { role: "button", tabindex: 0 } : {};
      pane.regions = [];
      // Small ones above large ones, to be clicked.
      for (const n of times(boxes.length).sort((a, b) => area(boxes[b]) - area(boxes[a]))) {
        const [x, y, x2, y2] = sides(boxes[n], width, height);
        const rect = make(scene, "rect", { class: "region", "data-region": n, x, y, width: x2 - x, height: y2 - y, ...asked });
        const pick = () => now().back[0] && choose("region", n);
        on(rect, "click", pick);
        on(rect, "keydown", (event) => {
          if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); }
        });
        pane.regions[n] = rect;
      }
    }
    function buildMap(pane) {
      const details = make(pane.body, "details", { open: "" });
      pane.legend = make(details, "summary");
      const map = make(details, "svg", { class: "map", viewBox: `-1.6 -0.2 ${wide + 1.8} ${depth + 1.2}`, "aria-hidden": "true" });
      times(depth).forEach((layer) => {
        const y = depth - 1 - layer;
        make(map, "text", { x: -0.2, y: y + 0.65, "text-anchor": "end" }, told.layers[layer].replace("cross ", ""));
        times(wide).forEach((head) => {
          const cell = make(map, "rect", { x: head, y, width: 1, height: 1, "data-cell": `${layer} ${head}` });
          make(cell, "title");
          on(cell, "click", () => show({ layer, head: head + 1 }));
          pane.cells.push({ cell, layer, head });
        });
      });
      for (const head of times(wide)) make(map, "text", { x: head + 0.5, y: depth + 0.55, "text-anchor": "middle" }, told.heads[head]);
    }

    // Painting
    function show(changes) {
      Object.assign(state, changes);
      layers(state.layer);
      heads(state.head);
      panes.forEach(paint);
    }
    function paint(pane) {
      if (!pane.words) return;
      if (!now().words.length) { pane.said.textContent = "No words."; return; }
      const words = state.kind === "word";
      const found = (words ? pane.pictures : [0]).map((_, n) => spread(attention(pane, state.layer, state.head - 1, state.index, n)));
      paintWords(pane, words ? null : found[0]);
      const tops = found.map(({ share, weights, top }) => share * weights[top]);
      pane.pictures.forEach((one, n) => {
        if (one.picture.complete && one.picture.naturalWidth) {
          paintPicture(pane, one, n, words ? found[n] : null, now().frames ? Math.max(...tops) : tops[n]);
        }
      });
      if (pane.regions) paintRegions(pane, words ? found[0] : null);
      say(pane, found, words);
      if (told.layers[0]) paintMap(pane);
    }
    function paintWords(pane, found) {
      pane.words.forEach((button, n) => {
        const weight = found ? found.weights[n] : 0, top = Boolean(found) && n === found.top;
        button.setAttribute("aria-pressed", String(!found && n === state.index));
        button.classList.toggle("gold", Boolean(found) && goldOf(n).includes(state.index));
        button.classList.toggle("top", top);
        button.style.backgroundColor = found ? `rgba(213, 94, 0, ${(0.6 * weight).toFixed(3)})` : "";
        button.querySelector(".share").textContent = found && (top || weight >= SHOWN) ? percent(weight) : "";
      });
    }
    const sides = ([x1, y1, x2, y2], width, height) => [x1 * width, y1 * height, x2 * width, y2 * height];
    function paintPicture(pane, { canvas, picture, boxes, grid, width, height }, n, found, top) {
      const pen = canvas.getContext("2d");
      pen.drawImage(picture, 0, 0, width, height);
      const small = document.createElement("canvas"), layer = small.getContext("2d");
      [small.width, small.height] = boxes ? [width, height] : [grid.columns, grid.rows];
      const fill = (place, x, y, x2, y2) => {
        layer.fillStyle = `rgb(${shade(found.weights[place] * found.share, top)})`;
        layer.fillRect(x, y, x2 - x, y2 - y);
      };
      const order = found && boxes ? times(boxes.length).sort((a, b) => found.weights[a] - found.weights[b]) : [];
      for (const region of order) fill(region, ...sides(boxes[region], width, height));
      if (grid) times(grid.rows * grid.columns).forEach((cell) => {
        const x = cell % grid.columns, y = Math.floor(cell / grid.columns);
        fill(cell, x, y, x + 1, y + 1);
      });
      const [x, y, x2, y2] = sides(grid ? grid.frame : [0, 0, 1, 1], width, height);
      pen.globalAlpha = MIXED;
      pen.drawImage(small, x, y, x2 - x, y2 - y);
      pen.globalAlpha = 1;
      // A line on a white one, which any picture shows.
      const line = (box, style, size, dash = [], out = 0) => {
        const [left, up, right, down] = sides(box, width, height);
        pen.setLineDash(dash);
        for (const [ink, wide] of [["#fff", size + 2.5], [style, size]]) {
          Object.assign(pen, { strokeStyle: ink, lineWidth: wide });
          pen.strokeRect(left - out, up - out, right - left + 2 * out, down - up + 2 * out);
        }
      };
      const label = (box, text) => {
        const [left, up] = sides(box, width, height), wide = 9 * text.length + 8;
        const at = Math.min(Math.max(left, 0), width - wide), over = up >= 22 ? up - 20 : Math.min(up + 2, height - 20);
        pen.fillStyle = "#a84300";
        pen.fillRect(at, over, wide, 18);
        Object.assign(pen, { fillStyle: "#fff", font: "700 13px system-ui, sans-serif" });
        pen.fillText(text, at + 4, over + 13.5);
      };
      if (boxes) boxes.forEach((one) => line(one, "#4d565f", 0.8));
      const lit = (least) => order.filter((region) => region === found.top || found.weights[region] >= least);
      for (const region of lit(LIT)) line(boxes[region], ORANGE, 1 + 4 * found.weights[region]);
      if (found && boxes) for (const one of goldOf(state.index)) line(boxes[one], GOLD, 2.2, [6, 4], 4);
      for (const region of lit(SHOWN)) label(boxes[region], percent(found.weights[region]));
      if (!found) line(boxes[state.index], "#f0e442", 4);
      const [image, attended] = (now().attended || [])[state.index] || [];
      if (found && image === n && state.head === 0) line(attended, ORANGE, 2.5);
      for (const one of n === 0 ? now().said || [] : []) line(one, GOLD, 2.5, [8, 6]);
    }
    function paintRegions(pane, found) {
      pane.regions.forEach((rect, n) => {
        rect.classList.toggle("top", Boolean(found) && n === found.top);
        rect.dataset.share = found ? found.weights[n].toFixed(5) : "";
        rect.setAttribute("aria-pressed", String(state.kind === "region" && n === state.index));
        rect.setAttribute("aria-label", region(n) + (found ? `, ${percent(found.weights[n])}` : ""));
      });
    }
    const where = () => (told.layers[0] ? `layer ${told.layers[state.layer]}, ` : "") +
      (state.head ? `head ${told.heads[state.head - 1]}` : "mean over heads");
    function say(pane, found, words) {
      const name = words ? `“${word(state.index)}”` : region(state.index);
      if (words && !boxes()) {
        const shares = now().shares[state.index], exact = (share) => `${(100 * share).toFixed(1)}%`;
        const several = shares.length > 1 ? "s" : "";
        pane.most = now().attended[state.index][0];
        pane.pictures.forEach(({ caption, label }, n) => { if (caption) caption.textContent = `${label}: ${exact(shares[n])}`; });
        const given = exact(sum(shares));
        pane.said.textContent = {
          contribution: `${given} of what speaks for ${name} is in the image${several}`,
          activation: `Logits of ${name}`,
          attention: `${name} gives to the image${several} ${given} of its attention`,
        }[now().what] +
          (several ? `, most to ${pane.pictures[pane.most].label}.` : ".");
        return;
      }
      const [{ share, weights, top }] = found;
      const [others, call] = words ? ["regions", region] : ["words", (n) => `“${word(n)}”`];
      const gold = words ? goldOf(state.index) : times(now().words.length).filter((n) => goldOf(n).includes(state.index));
      const verdict = !gold.length ? "" : gold.includes(top) ? " ✓ gold" : " ✗ not gold";
      pane.said.textContent = `${name}, ${where()}: ${percent(share)} of the attention goes to the ${others}; ` +
        `of that, ${percent(weights[top])} to ${call(top)}.${verdict}`;
      const order = times(weights.length).sort((a, b) => weights[b] - weights[a] || a - b).slice(0, 5);
      pane.ranks.replaceChildren();
      const line = (kind, name, share) => {
        const row = make(pane.ranks, "tr");
        make(row, kind, {}, name);
        make(row, kind, { class: "number" }, share);
      };
      line("th", `most attended ${others}`, `share of that on ${others}`);
      for (const n of order) line("td", call(n) + (gold.includes(n) ? " · gold" : ""), (100 * weights[n]).toFixed(1) + "%");
    }
    function paintMap(pane) {
      const words = state.kind === "word", gold = words ? goldOf(state.index) : [], others = words ? "regions" : "words";
      const what = gold.length ? "on regions that is on gold" : `that goes to ${others}`;
      pane.legend.textContent = `By layer (up) and head: share of the attention ${what} (dark 0, light 1)`;
      const values = pane.cells.map(({ layer, head }) => {
        const { share, weights } = spread(attention(pane, layer, head, state.index));
        return gold.length ? sum(gold.map((n) => weights[n])) : share;
      });
      pane.cells.forEach(({ cell, layer, head }, n) => {
        cell.style.fill = `rgb(${colour(values[n])})`;
        const here = layer === state.layer && (state.head === 0 || head === state.head - 1);
        cell.classList.toggle("here", here);
        // Drawn last, so that its neighbours do not cover its edge.
        if (here) cell.parentNode.append(cell);
        cell.firstChild.textContent = `layer ${told.layers[layer]}, head ${told.heads[head]}: ${percent(values[n])}`;
      });
    }

    openBestHead();
    panes.forEach(frame);
    openExample(0);
  }
  data.explorers.forEach(open);
  root.dataset.ready = "true";
})();
