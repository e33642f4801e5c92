"use strict";
// What the other files build on: the data, and elements made of text alone. Nothing here reads text as HTML.
const index = JSON.parse(document.getElementById("index").textContent);
const { rows, pictures } = index;
const words = new Map(index.levels);
rows.forEach((row, place) => { row.place = place; row.name = row.image.slice(row.image.lastIndexOf("/") + 1); });

const split = (tag) => {
  const [name, ...classes] = tag.split(".");
  return [name, classes.length ? { class: classes.join(" ") } : {}];
};

/** An element with attributes and children (texts, elements; null is left out): make("p.soft", {}, "text"). */
function make(tag, attributes = {}, ...children) {
  const [name, classes] = split(tag);
  return el(name, { ...classes, ...attributes }, ...children);
}

function draw(tag, attributes = {}, ...children) {
  const [name, classes] = split(tag);
  return svg(name, { ...classes, ...attributes }, ...children);
}

/** Places or sizes an element; through the object model, which the page's policy allows. */
function place(element, styles) {
  Object.assign(element.style, styles);
  return element;
}

const blocks = new Map(); // those in use; the least recent ones are dropped, their text stays in the page

/** Item `number` of the data of one kind: accounts or copies. */
function item(kind, number) {
  const size = index.block[kind];
  const id = `${kind}-${Math.floor(number / size)}`;
  let block = blocks.get(id);
  if (!block) {
    const source = byId(id);
    block = source ? JSON.parse(source.textContent) : [];
    if (blocks.size > 60) blocks.delete(blocks.keys().next().value);
  } else {
    blocks.delete(id);
  }
  blocks.set(id, block);
  return block[number % size] ?? null;
}

const address = (content) => `data:image/webp;base64,${content}`;
const share = (q) => `${((Math.min(5, Math.max(1, q)) - 1) / 4) * 100}%`;
const count = (value) => value.toLocaleString("en");
const counted = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

/** An error's reason and its remedy: what stands behind the last semicolon. */
function reasoned(row) {
  const text = row.error.startsWith(`${row.image}: `) ? row.error.slice(row.image.length + 2) : row.error;
  const end = text.lastIndexOf("; ");
  return end < 0 ? [text, ""] : [text.slice(0, end), text.slice(end + 2)];
}
