// The account of a row, as the terminal prints it too (output/account.py): one section for each of its parts.
import { el, number, percent, table } from "./dom.js";
import { bars } from "./scale.js";

const paragraphs = (sentences) => sentences.map((sentence) => el("p", {}, sentence));
const levelIn = (label) => /^([A-E]) /.exec(label)?.[1] ?? null; // "C Fair" has a level, "C. noise" has none
const shares = (all) => bars(all.map(([label, share]) => ({ label, share, text: percent(share), letter: levelIn(label) })));
const scores = (all, title) => table(["Source", { number: "1 to 5" }, "Made of"],
  all.map(([name, score, about]) => [name, { number: number(score) }, about]), title);

export function account(parts) {
  return el("div", { class: "parts" }, parts.map((part) => el("section", { class: "part" }, el("h2", {}, part.title),
    paragraphs(part.sentences),
    part.shares.length > 0 && shares(part.shares),
    part.scores.length > 0 && scores(part.scores, part.title))));
}
