// What came of a request: an assessment, a comparison or a batch. `accounts` are those of its pictures (account.js).
import { account } from "./account.js";
import { card, download, el, lines, number, percent } from "./dom.js";
import { letterOf, scale, wordOf } from "./scale.js";
import { pictures } from "./pictures.js";

// The probability of each answer, as it was chosen: the product with what was measured, else the letters' own.
const probabilities = (row) => row.fusion?.product ?? row.fusion?.p_c;
const choice = (row, letter) => row.choices?.["ABCDEFGHIJ".indexOf(letter)] ?? letter;

// row: as the command line's --json; image, reference: addresses of what was sent.
export function answer(row, [parts], image, reference) {
  const found = [headline(row), row.error ? null : pictures(row, image, reference), card(null, account(parts)),
    el("footer", { class: "cost" }, el("span"),
      el("button", { type: "button", onclick: () => download(`${row.image}.json`, JSON.stringify(row)) }, "Download the row (JSON)"))];
  return el("article", { class: "answer", "aria-label": `Answer on ${row.image}` }, found.filter(Boolean));
}

// The answer in a few words, for people who cannot see it.
export function spoken(row) {
  if (row.q === null) return `${chosen(row)}.`;
  const range = row.interval ? `, between ${number(row.interval.low, 1)} and ${number(row.interval.high, 1)}` : "";
  return `${row.not_sure ? "Not sure: " : ""}${wordOf(row.final_answer)}, ${number(row.q)} of 5${range}.`;
}

function headline(row) {
  if (row.error) {
    return el("div", { class: "failed" }, el("strong", {}, `${row.image} could not be assessed`), el("p", {}, row.error.startsWith(`${row.image}: `) ? row.error.slice(row.image.length + 2) : row.error));
  }
  if (row.q === null) return card(row.query, el("p", { class: "verdict" }, chosen(row)));
  const gate = row.gate && el("span", { class: `badge ${row.gate.verdict}` }, row.gate.verdict);
  const letter = row.final_answer;
  return card(null,
    el("p", { class: "verdict" },
      el("span", { class: `letter text-${letter}` }, `${row.not_sure ? "Not sure: " : ""}${wordOf(letter)}`),
      el("span", { class: "q" }, `q ${number(row.q)}`, el("span", { class: "soft" }, " of 5")), gate),
    scale(row.q, row.interval));
}

export function chosen(row) {
  const p = probabilities(row);
  if (!row.choices || !p) return row.final_answer?.length > 1 ? row.final_answer : `the model wrote “${row.final_answer ?? ""}” alone`;
  return `${choice(row, row.final_answer)} (p ${number(p[row.final_answer])})`;
}

// All that is known of a picture among several.
const folded = (parts) => el("details", { class: "account" }, el("summary", {}, "All about this picture"), account(parts));

// Whether an answer of any kind is none.
export const failed = (found) => Boolean(found.error) || found.order?.length === 0;

// A comparison of two pictures, or a ranking; its accounts stand in the order first, second or best to worst. sent: [name, address] of each picture, in the order sent.
export function comparison(found, accounts, sent) {
  if (failed(found)) {
    const why = found.error ? [found.error] : found.failed.map((row) => `${row.image}: ${row.error ?? "it has no rating"}`);
    return el("article", { class: "answer", "aria-label": "Comparison" },
      el("div", { class: "failed" }, el("strong", {}, "The pictures could not be compared"), lines(why)));
  }
  const two = found.kind === "comparison";
  const rows = [found.first, found.second];
  const places = two
    ? (found.pair.probability >= 0.5 ? [0, 1] : [1, 0]).map((index) => ({ row: rows[index], parts: accounts[index], sure: null }))
    : found.order.map((one, index) => ({ row: one.assessment, parts: accounts[index], sure: one.better_than_next }));
  if (two) places[0].sure = Math.max(found.pair.probability, 1 - found.pair.probability);
  const addresses = new Map(sent);
  const list = places.map(({ row, parts, sure }, index) => el("li", {},
    el("img", { src: addresses.get(row.image) ?? "", alt: "", class: "shot" }),
    el("div", {}, el("strong", {}, `${index + 1}. ${row.image}`),
      el("p", {}, el("span", { class: `text-${letterOf(row.q)}` }, wordOf(row.final_answer)), ` q ${number(row.q)}`),
      scale(row.q, row.interval),
      sure !== null && el("p", { class: "soft" }, sure < 0.5 ? "hardly told from the next" : `better than the next with ${sure < 0.995 ? percent(sure) : "more than 99 %"} probability`), folded(parts))));
  const notes = two ? [`Basis: ${found.pair.basis}.`] : [];
  const missing = (found.failed ?? []).map((row) => `${row.image}: ${row.error ?? "it has no rating"}`);
  return el("article", { class: "answer", "aria-label": "Comparison" },
    card("From the best on", el("ol", { class: "order" }, list)),
    notes.length ? card("What it rests on", lines(notes)) : null,
    missing.length ? card("Could not be assessed", lines(missing)) : null,
    el("footer", { class: "cost" }, el("span"),
      el("button", { type: "button", onclick: () => download("comparison.json", JSON.stringify(found)) }, "Download the comparison (JSON)")));
}

// The rows of a batch, the best first, and its gallery (a page). sent: [name, address] of each picture.
export function batch({ rows, gallery }, accounts, sent) {
  const addresses = new Map(sent);
  const pairs = rows.map((row, index) => ({ row, parts: accounts[index] })).filter(({ row }) => !row.error);
  const list = pairs.sort((one, other) => other.row.q - one.row.q).map(({ row, parts }) => el("li", {},
    el("img", { src: addresses.get(row.image) ?? "", alt: "", class: "shot" }),
    el("div", {}, el("strong", {}, row.image),
      row.q === null ? el("p", {}, chosen(row)) : el("p", {}, el("span", { class: `text-${letterOf(row.q)}` }, wordOf(row.final_answer)), ` q ${number(row.q)}`),
      row.q !== null && scale(row.q, row.interval), folded(parts))));
  const missing = rows.filter((row) => row.error).map((row) => `${row.image}: ${row.error}`);
  return el("article", { class: "answer", "aria-label": "Batch" },
    list.length ? card("Each picture", el("ol", { class: "order" }, list)) : null,
    missing.length ? card("Could not be assessed", lines(missing)) : null,
    el("footer", { class: "cost" },
      el("button", { type: "button", onclick: () => download("gallery.html", gallery, "text/html") }, "Download the gallery"),
      el("button", { type: "button", onclick: () => download("rows.jsonl", rows.map((row) => `${JSON.stringify(row)}\n`).join("")) }, "Download the rows (JSON lines)")));
}
