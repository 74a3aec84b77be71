/* The search of the site: ranks the sections in SECTIONS (search_sections.py) and shows an excerpt of each. */
"use strict";

/* What is left of a word if its spelling, plural and ending do not count: boxes -> box, visualise -> visualiz. */
function stem(word) {
  let left = word.toLowerCase().replace(/our(?=s?$|ed$|ing$)/, "or").replace(/is(?=(e|ed|es|ing|ation|er)s?$)/, "iz");
  if (left.length > 4) left = left.replace(/(ations?|ings?|ers?|ed|es|e|s)$/, "");
  return left;
}

const split = text => text.match(/[\p{L}\p{N}_@]+/gu) || [];
const stems = text => split(text).map(stem);

/* How well a section answers the words of a query; 0 if it has none of them. The page's own search words count most. */
function score(section, wanted, phrase) {
  let sum = 0, missing = 0;
  for (const word of wanted) {
    const count = section.text.get(word) || 0;
    const value = (section.words.has(word) ? 30 : 0) + (section.heading.has(word) ? 9 : 0)
      + (section.title.has(word) ? 4 : 0) + Math.min(3, Math.log2(1 + count));
    sum += value;
    missing += !value;
  }
  if (section.phrases.includes(phrase)) sum += 20;
  return sum && sum / (1 + 4 * missing);
}

let indexed;
function index() {
  return indexed ||= SECTIONS.map(([address, title, heading, text, words]) => {
    const counts = new Map();
    for (const word of stems(text)) counts.set(word, (counts.get(word) || 0) + 1);
    return { address, shown: [title, heading], raw: text, text: counts, title: new Set(stems(title)),
      heading: new Set(stems(heading)), words: new Set(stems(words)), phrases: words.toLowerCase().split(/\s*,\s*/) };
  });
}

/* The best sections for a query, at most `most`: {address, title, heading, excerpt}. */
function search(query, most = 25) {
  const wanted = [...new Set(stems(query))], phrase = query.trim().toLowerCase();
  const hits = index().map(section => [score(section, wanted, phrase), section]).filter(([value]) => value);
  hits.sort((one, other) => other[0] - one[0]);
  return hits.slice(0, most).map(([, section]) => ({ address: section.address, title: section.shown[0],
    heading: section.shown[1], excerpt: excerpt(section.raw, wanted) }));
}

/* Thirty words of a text around the place with the most words of the query: pairs of text and whether it was found. */
function excerpt(text, wanted, length = 30) {
  const parts = text.split(/\s+/), found = parts.map(part => stems(part).some(word => wanted.includes(word)));
  let best = 0, most = -1;
  for (let start = 0; start < Math.max(1, parts.length - length / 2); start++) {
    const count = found.slice(start, start + length).filter(Boolean).length;
    if (count > most) [best, most] = [start, count];
  }
  const from = Math.max(0, best - 4), shown = parts.slice(from, from + length);
  return shown.map((part, place) => [part, found[from + place]]);
}

function show(query, place) {
  const hits = search(query), summary = document.createElement("p");
  summary.setAttribute("role", "status");
  summary.textContent = hits.length ? `Sections that match “${query}”, the best first:` : `Nothing matches “${query}”.`;
  const list = document.createElement("ol");
  list.className = "search-hits";
  for (const hit of hits) {
    const item = document.createElement("li"), link = document.createElement("a"), text = document.createElement("p");
    link.href = hit.address;
    link.textContent = hit.heading === hit.title ? hit.title : `${hit.title} › ${hit.heading}`;
    for (const [part, found] of hit.excerpt) {
      const word = document.createElement(found ? "mark" : "span");
      word.textContent = part;
      text.append(word, " ");
    }
    item.append(link, text);
    list.append(item);
  }
  place.replaceChildren(summary, list);
}

document.addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("found-sections"), query = new URLSearchParams(location.search).get("q");
  if (place && query) show(query, place);
});
