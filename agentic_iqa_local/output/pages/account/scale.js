// The five-step scale, and bars.
import { el, number, percent, svg } from "./dom.js";

const WORDS = { A: "Excellent", B: "Good", C: "Fair", D: "Poor", E: "Bad" };
const LEVELS = { A: 5, B: 4, C: 3, D: 2, E: 1 };
export const letterOf = (q) => "EDCBA"[Math.min(4, Math.max(0, Math.round(q) - 1))];
export const wordOf = (letter) => WORDS[letter];
export const levelOf = (letter) => LEVELS[letter];

// q in 1..5 (null: the steps alone) with its interval {low, high} or null.
export function scale(q, interval) {
  const at = (value) => 12 + ((value - 1) / 4) * 576;
  const steps = ["E", "D", "C", "B", "A"].map((letter, index) => {
    const [from, to] = [Math.max(1, index + 0.5), Math.min(5, index + 1.5)];
    return svg("rect", { x: at(from) + 1, y: 34, width: at(to) - at(from) - 2, height: 12, rx: 3, class: `fill-${letter}` });
  });
  const words = el("div", { class: "ticks", "aria-hidden": "true" }, ["E", "D", "C", "B", "A"].map((letter) => el("span", {}, WORDS[letter])));
  if (q === null) {
    return el("div", { class: "scale" }, svg("svg", { viewBox: "0 30 600 20", "aria-hidden": "true" }, ...steps), words);
  }
  const range = interval && [
    svg("line", { x1: at(interval.low), x2: at(interval.high), y1: 20, y2: 20, class: "range" }),
    ...[interval.low, interval.high].map((end) => svg("line", { x1: at(end), x2: at(end), y1: 14, y2: 26, class: "range" })),
  ];
  const told = interval ? `, between ${number(interval.low, 1)} and ${number(interval.high, 1)}` : "";
  const drawn = svg("svg", { viewBox: "0 8 600 42", role: "img", "aria-label": `q ${number(q)} of 5${told}` },
    ...steps, ...(range ?? []), svg("circle", { cx: at(q), cy: 20, r: 8, class: "mark" }));
  return el("div", { class: "scale" }, drawn, words);
}

// [{label, share 0..1, text, letter}] as horizontal bars.
export function bars(items) {
  return el("ul", { class: "bars" }, items.map(({ label, share, text, letter }) => el("li", {},
    el("span", {}, label),
    svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { width: 100, height: 10, class: "track" }),
      svg("rect", { width: Math.max(0.5, share * 100), height: 10, class: letter ? `fill-${letter}` : "fill" })),
    el("span", { class: "n" }, text))));
}
