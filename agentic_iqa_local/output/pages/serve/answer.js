// An assessment as a page part.
import { card, download, el, lines, number, percent, table } from "./dom.js";
import { bars, letterOf, scale, wordOf } from "./scale.js";
import { pictures } from "./pictures.js";

// The probability of each answer as the answer was chosen: with what was measured, where something was.
const probabilities = (row) => row.fusion?.product ?? row.fusion?.p_c;
const choice = (row, letter) => row.choices?.["ABCDEFGHIJ".indexOf(letter)] ?? letter;
const SAID = { Blurs: "blur", "Color distortions": "colour distortion", Sharpness: "oversharpening" };
const BASES = {
  "same scene, fitted": "the difference of the scores, as fitted to pairs of one scene",
  intervals: "the intervals of both",
  "fused distributions": "the probabilities of both pictures' levels",
  "same pixels": "their pixels, which are the same",
};
const ended = (text) => (/[.!?…]$/.test(text) ? text : `${text}.`);

// A distortion of an object as a person says it (state.in_words).
function inWords(row, name, kind) {
  const exposure = row.evidence?.detection?.[name]?.exposure;
  if (kind === "Brightness change" && exposure) {
    const [dark, bright] = [exposure["too dark"], exposure["too bright"]];
    if (dark > 2 * bright) return "underexposure";
    if (bright > 2 * dark) return "overexposure";
  }
  return SAID[kind] ?? kind.toLowerCase();
}

// row: as the command line's --json; image, reference: addresses of what was sent.
export function answer(row, image, reference) {
  const parts = [headline(row), row.error ? null : pictures(row, image, reference)];
  if (!row.error) {
    parts.push(letters(row), tools(row), evidence(row), sure(row), damage(row), passes(row));
  }
  if (row.warnings.length) parts.push(card("Warnings", lines(row.warnings)));
  parts.push(cost(row));
  return el("article", { class: "answer", "aria-label": `Answer on ${row.image}` }, parts.filter(Boolean));
}

// The answer in a few words, for who cannot see it.
export function spoken(row) {
  if (row.q === null) return `${chosen(row)}.`;
  const range = row.interval ? `, between ${number(row.interval.low, 1)} and ${number(row.interval.high, 1)}` : "";
  return `${row.not_sure ? "Not sure: " : ""}${wordOf(row.final_answer)}, ${number(row.q)} of 5${range}.`;
}

function headline(row) {
  if (row.error) {
    return el("div", { class: "failed" }, el("strong", {}, `${row.image} could not be assessed`), el("p", {}, row.error.startsWith(`${row.image}: `) ? row.error.slice(row.image.length + 2) : row.error));
  }
  const notice = row.model?.notice && el("p", { class: "notice" }, `Note: ${row.model.notice}.`);
  if (row.q === null) return card(row.query, el("p", { class: "verdict" }, chosen(row)), why(row), notice);
  const gate = row.gate && el("span", { class: `badge ${row.gate.verdict}` }, row.gate.verdict);
  const letter = row.final_answer;
  return card(null,
    el("p", { class: "verdict" },
      el("span", { class: `letter text-${letter}` }, `${row.not_sure ? "Not sure: " : ""}${wordOf(letter)}`),
      el("span", { class: "q" }, `q ${number(row.q)}`, el("span", { class: "soft" }, " of 5")), gate),
    scale(row.q, row.interval), why(row), notice);
}

export function chosen(row) {
  const p = probabilities(row);
  if (!row.choices || !p) return row.final_answer?.length > 1 ? row.final_answer : `the model wrote “${row.final_answer ?? ""}” alone`;
  return `${choice(row, row.final_answer)} (p ${number(p[row.final_answer])})`;
}

const why = (row) => row.quality_reasoning && el("p", { class: "why" }, row.quality_reasoning);

function letters(row) {
  const p = probabilities(row);
  if (!p) return null;
  const rated = row.q !== null;
  const items = Object.entries(p).map(([letter, share]) => ({
    label: rated ? `${letter} ${wordOf(letter)}` : `${letter} ${choice(row, letter)}`,
    share, text: percent(share), letter: rated ? letter : null,
  }));
  return card(rated ? "How probable the model finds each level" : "How probable each answer is", bars(items), rest(row));
}

// What the answer rests on.
function rest(row) {
  const soft = (text) => el("p", { class: "soft" }, text);
  const measurement = row.fusion?.measurement;
  if (measurement) return soft(row.fusion.product ? `The answer also rests on ${measurement}.` : `No measurement counts: ${measurement}.`);
  if (row.q === null) return null;
  if (row.fusion.q_bar === null) return soft("No tool gave a score, so q is the model's alone.");
  return soft(`The tools' mean is ${number(row.fusion.q_bar)} of 5; fused with η ${number(row.fusion.eta)}. q moves by ${number(row.fusion.dq_dqbar)} when the tools' mean moves by one.`);
}

function tools(row) {
  if (!row.tools.length) return null;
  const cells = row.tools.map((run) => [
    run.tool_name, run.raw_score === null ? null : `${run.raw_score.toPrecision(4)}${run.scale ? ` (${run.scale})` : ""}`, { number: number(run.normalized_score) },
    `${run.object_name === "Global" ? "" : `${run.object_name}: `}${SAID[run.distortion] ?? run.distortion}`, { number: `${number(run.execution_time)} s` },
    [run.error, run.fallback && "stands in for another tool", run.trailing && "checks, without a vote", run.outvoted && "outvoted"].filter(Boolean).join("; "),
  ]);
  const remarks = cells.some((line) => line.at(-1));
  const headers = ["Tool", "Raw score", { number: "Of 5" }, "Measured", { number: "Time" }, ...(remarks ? ["Remarks"] : [])];
  return card("Tools", table(headers, cells.map((line) => (remarks ? line : line.slice(0, -1))), "Tools"));
}

function evidence(row) {
  const analysis = row.evidence?.distortion_analysis;
  if (!analysis) return null;
  const found = (name, item) => {
    const kind = inWords(row, name, item.type);
    const severity = { none: "no", unclear: "how severe cannot be told:" }[item.severity] ?? item.severity;
    return el("li", {}, el("strong", {}, `${severity[0].toUpperCase()}${severity.slice(1)} ${kind}: `), ended(item.explanation));
  };
  const objects = Object.entries(analysis).map(([name, items]) => el("div", {}, el("h3", {}, name === "Global" ? "Whole picture" : name),
    items.length ? el("ul", { class: "lines" }, items.map((item) => found(name, item))) : el("p", {}, "No damage was found.")));
  return card("Evidence", ...objects);
}

function sure(row) {
  const told = [];
  const { interval, gate } = row;
  if (interval) {
    told.push(`With ${percent(interval.coverage)} probability the true quality lies between ${number(interval.low, 1)} and ${number(interval.high, 1)} (learnt from ${interval.calibrated_on}).`,
      ...interval.widened.map((reason) => `The range is wider because ${reason}.`));
  }
  if (row.no_interval) told.push(`${row.no_interval[0].toUpperCase()}${row.no_interval.slice(1)}.`);
  if (row.answer_set && row.choices) {
    const { letters: possible, coverage, calibrated_on: on, widened } = row.answer_set;
    const all = possible.length === row.choices.length;
    told.push(all ? `At ${percent(coverage)} no answer is ruled out: too many such answers were wrong (learnt from ${on}).`
      : `With ${percent(coverage)} probability the right answer is ${possible.map((letter) => choice(row, letter)).join(" or ")} (learnt from ${on}).`,
    ...widened.map((reason) => `There are more of them because ${reason}.`));
  }
  if (row.not_sure) told.push(`The answer is held back: ${row.not_sure.replace(/^not sure: /, "")}.`);
  if (gate) told.push(`It is ${gate.at_least} or better with ${percent(gate.probability)} probability: ${gate.verdict}; at most ${percent(gate.error_rate)} of such verdicts are wrong.`);
  return told.length ? card("How sure", lines(told)) : null;
}

function damage(row) {
  if (!row.map) return row.no_map ? card("Where the damage is", el("p", {}, row.no_map)) : null;
  const seen = (box) => {
    if (!box.distortion) return "";
    const severity = box.severity === "none" ? "barely visible" : box.severity;
    return ` (${[severity, inWords(row, "Global", box.distortion)].filter(Boolean).join(" ")})`;
  };
  const boxes = row.map.worst.map((box, index) =>
    `Box ${index + 1}, the ${box.place}: ${number(box.q)} of 5, ${number(box.below)} below the rest${seen(box)}`);
  if (!boxes.length) boxes.push(`No part is clearly worse than the rest: the map's median is ${number(row.map.median)}.`);
  return card("Where the damage is", lines(boxes));
}

function passes(row) {
  if (row.passes.length < 2 && !row.plan_corrections.length) return null;
  const items = row.passes.map((pass) => el("li", {},
    el("strong", {}, `Pass ${pass.number}`), pass.asked ? ` to close: ${pass.asked}` : "",
    el("ul", { class: "lines" }, [["Concluded", row.choices ? choice(row, pass.concluded) : pass.concluded],
      ["Still open", pass.gaps.join("; ")]]
      .filter(([, text]) => text).map(([name, text]) => el("li", {}, `${name}: ${text}`)))));
  return card("Passes of the agent", el("ol", { class: "passes" }, items),
    row.plan_corrections.length ? lines(row.plan_corrections.map((text) => `Corrected by rule: ${text}`)) : null);
}

function cost(row) {
  const tokens = row.tokens
    ? `${row.model?.name} on ${row.model?.device}: ${row.tokens.prefilled} tokens computed, ${row.tokens.reused} reused, ${row.tokens.decoded} written; ` : "";
  return el("footer", { class: "cost" }, el("p", { class: "soft" }, `${tokens}${number(row.seconds, 1)} s`),
    el("button", { type: "button", onclick: () => download(`${row.image}.json`, JSON.stringify(row)) }, "Download the row (JSON)"));
}

// All that is known of a picture that was compared, filled in when it is opened.
function account(row) {
  const part = el("details", { class: "account" }, el("summary", {}, "All about this picture"));
  part.addEventListener("toggle", () => part.append(facts(row)), { once: true });
  return part;
}

const facts = (row) => el("div", { class: "answer" }, [letters(row), tools(row), evidence(row), sure(row), passes(row),
  row.warnings.length ? card("Warnings", lines(row.warnings)) : null].filter(Boolean));

// Whether an answer of any kind is none.
export const failed = (found) => Boolean(found.error) || found.order?.length === 0;

// A comparison of two pictures, or a ranking. sent: [name, address] of each picture, in the order sent.
export function comparison(found, sent) {
  if (failed(found)) {
    const why = found.error ? [found.error] : found.failed.map((row) => `${row.image}: ${row.error ?? "it has no rating"}`);
    return el("article", { class: "answer", "aria-label": "Comparison" },
      el("div", { class: "failed" }, el("strong", {}, "The pictures could not be compared"), lines(why)));
  }
  const two = found.kind === "comparison";
  const rows = [found.first, found.second];
  const places = two
    ? (found.pair.probability >= 0.5 ? [0, 1] : [1, 0]).map((index) => ({ row: rows[index], sure: null }))
    : found.order.map((one) => ({ row: one.assessment, sure: one.better_than_next }));
  if (two) places[0].sure = Math.max(found.pair.probability, 1 - found.pair.probability);
  const addresses = new Map(sent);
  const list = places.map(({ row, sure }, index) => el("li", {},
    el("img", { src: addresses.get(row.image) ?? "", alt: "", class: "shot" }),
    el("div", {}, el("strong", {}, `${index + 1}. ${row.image}`),
      el("p", {}, el("span", { class: `text-${letterOf(row.q)}` }, wordOf(row.final_answer)), ` q ${number(row.q)}`),
      scale(row.q, row.interval),
      sure !== null && el("p", { class: "soft" }, sure < 0.5 ? "hardly told from the next" : `better than the next with ${sure < 0.995 ? percent(sure) : "more than 99 %"} probability`), account(row))));
  const notes = two ? [`This rests on ${BASES[found.pair.basis] ?? found.pair.basis}.`] : [];
  const missing = (found.failed ?? []).map((row) => `${row.image}: ${row.error ?? "it has no rating"}`);
  return el("article", { class: "answer", "aria-label": "Comparison" },
    card("From the best on", el("ol", { class: "order" }, list)),
    notes.length ? card("What it rests on", lines(notes)) : null,
    missing.length ? card("Could not be assessed", lines(missing)) : null,
    el("footer", { class: "cost" }, el("span"),
      el("button", { type: "button", onclick: () => download("comparison.json", JSON.stringify(found)) }, "Download the comparison (JSON)")));
}

// The rows of a batch, the best first, and its gallery (a page). sent: [name, address] of each picture.
export function batch({ rows, gallery }, sent) {
  const addresses = new Map(sent);
  const list = rows.filter((row) => !row.error).sort((one, other) => other.q - one.q).map((row) => el("li", {},
    el("img", { src: addresses.get(row.image) ?? "", alt: "", class: "shot" }),
    el("div", {}, el("strong", {}, row.image),
      row.q === null ? el("p", {}, chosen(row)) : el("p", {}, el("span", { class: `text-${letterOf(row.q)}` }, wordOf(row.final_answer)), ` q ${number(row.q)}`),
      row.q !== null && scale(row.q, row.interval), account(row))));
  const missing = rows.filter((row) => row.error).map((row) => `${row.image}: ${row.error}`);
  return el("article", { class: "answer", "aria-label": "Batch" },
    list.length ? card("Each picture", el("ol", { class: "order" }, list)) : null,
    missing.length ? card("Could not be assessed", lines(missing)) : null,
    el("footer", { class: "cost" },
      el("button", { type: "button", onclick: () => download("gallery.html", gallery, "text/html") }, "Download the gallery"),
      el("button", { type: "button", onclick: () => download("rows.jsonl", rows.map((row) => `${JSON.stringify(row)}\n`).join("")) }, "Download the rows (JSON lines)")));
}
