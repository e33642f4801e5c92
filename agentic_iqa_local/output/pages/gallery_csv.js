// Decisions of the triage: kept in this browser as long as it allows, row by row, and saved as a table.
const DECISIONS = { k: "keep", r: "reject", u: "unsure" };
const placeOf = (id) => `agentic-iqa-gallery:${id}`;
const decisions = new Map(); // a row's id → keep, reject or unsure
const undone = []; // what was decided: lists of [row's id, what it was before], the latest last
let stored = true;

try {
  for (const { id } of rows) {
    const decision = localStorage.getItem(placeOf(id));
    if (Object.values(DECISIONS).includes(decision)) decisions.set(id, decision);
  }
} catch {
  stored = false; // a browser that keeps nothing for files: the decisions last as long as the page
}

/** Gives rows a decision, or none; one step for undo. */
function decide(some, decision) {
  undone.push(some.map(({ id }) => [id, decisions.get(id)]));
  for (const { id } of some) setDecision(id, decision);
}

function setDecision(id, decision) {
  if (decision) decisions.set(id, decision);
  else decisions.delete(id);
  try {
    if (decision) localStorage.setItem(placeOf(id), decision);
    else localStorage.removeItem(placeOf(id));
    stored = true;
  } catch {
    stored = false;
  }
}

// The rule of the command line's --csv (cells.py): text that a spreadsheet may take for a formula gets an
// apostrophe, also behind a semicolon, a tab or a line end, where a program may begin another cell.
const PLAIN_NUMBER = /^[+-]?([0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?|inf)$/;
const QUOTES = "\"'`´‘’‚“”„«»";
const SHORT = { "\b": "\\b", "\f": "\\f" };

/** A text with everything escaped that may steer a terminal; tabs and line ends stay. */
function printable(text) {
  return text.replace(/(?![\t\n\r])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, (char) => SHORT[char] ??
    Array.from({ length: char.length }, (_, i) => `\\u${char.charCodeAt(i).toString(16).padStart(4, "0")}`).join(""));
}

function isFormula(text) {
  if (PLAIN_NUMBER.test(text)) return false;
  for (const char of text) {
    if (QUOTES.includes(char) || /[\p{C}\p{Z}\p{M}]/u.test(char)) continue;
    return ["=", "+", "-", "@"].includes(char.normalize("NFKC"));
  }
  return false;
}

function safeCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "string") return String(value);
  return printable(value.split(/([;\t\n\r])/).map((part) => (isFormula(part) ? `'${part}` : part)).join(""));
}

const quoted = (cell) => (/[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);

/** A table of all rows that have a decision, in the order of the file. */
function decisionsTable() {
  const header = ["image", "decision", "level", "q", "q_low", "q_high", "gate", "distortion", "query", "error", "sha256"];
  const lines = rows.filter((row) => decisions.has(row.id)).map((row) => [
    row.image, decisions.get(row.id), words.get(row.letter), row.q, row.low, row.high, row.verdict, row.worst,
    row.query, row.error, row.sha256,
  ]);
  return [header, ...lines].map((line) => `${line.map((cell) => quoted(safeCell(cell))).join(",")}\r\n`).join("");
}

function saveDecisions() {
  const link = make("a", { download: `${index.name.replace(/\.jsonl?$/, "")}.triage.csv` });
  link.href = URL.createObjectURL(new Blob(["\ufeff", decisionsTable()], { type: "text/csv;charset=utf-8" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
