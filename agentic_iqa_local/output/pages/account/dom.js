// Elements of the page. All text goes in as text, never as markup.
const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const number = (value, digits = 2) => (value === null || value === undefined ? "—" : value.toFixed(digits));
export const percent = (value) => `${Math.round(value * 100)} %`;

export function card(title, ...children) {
  return el("section", { class: "card" }, title && el("h2", {}, title), ...children);
}

export function table(headers, rows, caption) {
  // a cell or header is text, or {number: text}, which stands at the right
  const filledIn = (tag, cell, more) => el(tag, { class: cell?.number ? "n" : null, ...more }, cell?.number ?? cell ?? "—");
  const head = el("tr", {}, headers.map((header) => filledIn("th", header, { scope: "col" })));
  const body = rows.map((cells) => el("tr", {}, cells.map((cell) => filledIn("td", cell, {}))));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el("table", {}, el("thead", {}, head), el("tbody", {}, body)));
}

export function lines(texts) {
  return el("ul", { class: "lines" }, texts.map((text) => el("li", {}, text)));
}

export function download(name, text, type = "application/json") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
