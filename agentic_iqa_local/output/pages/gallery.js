// The list: of all rows that are shown, only those near the window are elements of the page.
const [listed, pane, roll] = ["list", "pane", "roll"].map(byId);
const cards = new Map(); // place in `shown` → its element
const GAP = 16;
let shown = [];
let current = 0; // place in `shown` of the card that the keyboard is at
let grid = { columns: 1, width: 0, height: 0 };

function measure() {
  const wide = listed.clientWidth;
  const columns = Math.max(2, Math.floor((wide + GAP) / (208 + GAP)));
  const across = (wide - (columns - 1) * GAP) / columns;
  grid = { columns, width: across, height: Math.round(across * 0.72) + 96 };
  roll.style.height = `${Math.max(0, Math.ceil(shown.length / columns) * (grid.height + GAP) - GAP)}px`;
}

function face(row) {
  const picture = pictures[row.picture];
  if (picture.missing) return make("div.face.missing", {}, make("span", {}, reasoned({ error: picture.missing, image: row.image })[0]));
  return make("div.face", {}, make("img", { alt: "", decoding: "sync", src: address(item("copies", row.picture)) }));
}

function figures(row) {
  if (row.error) return make("div.figures", {}, make("span.letter.failed", {}, "!"), make("span", {}, "Failed"));
  if (!row.letter) return make("div.figures", {}, make("span.answer", {}, row.answer ?? "No answer"));
  const range = row.low === undefined ? null : place(make("span.interval"), { left: share(row.low), right: `calc(100% - ${share(row.high)})` });
  return make("div.figures", {}, make(`span.letter.level${row.letter}`, {}, row.letter), make("span.q", {}, number(row.q)),
    make("span.line", { "aria-hidden": "true" }, range, place(make("span.mark"), { left: share(row.q) })));
}

function cardOf(row, at) {
  const decision = decisions.get(row.id);
  const verdict = row.held ? "held" : row.verdict;
  const button = make(`button.card${decision ? `.is-${decision}` : ""}`, { type: "button", tabindex: at === current ? 0 : -1 },
    face(row), figures(row),
    make("div.name", { title: row.image }, row.name),
    make("div.note", {}, make("span", {}, row.error ? reasoned(row)[0] : row.letter ? row.worst ?? "" : row.query),
      verdict ? make(`span.verdict.is-${verdict}`, {}, GROUPS.verdict[3](verdict)) : null),
    decision ? make("span.stamp", {}, decision) : null);
  const element = make("li", { "aria-setsize": shown.length, "aria-posinset": at + 1 }, button);
  const [column, line] = [at % grid.columns, Math.floor(at / grid.columns)];
  return place(element, {
    left: `${column * (grid.width + GAP)}px`, top: `${line * (grid.height + GAP)}px`, width: `${grid.width}px`, height: `${grid.height}px`,
  });
}

/** Makes the cards within a window's height of the window, and takes the others away, except the current one. */
function render() {
  const top = -roll.getBoundingClientRect().top;
  const offset = Math.max(0, Math.min(top, roll.offsetHeight - pane.offsetHeight));
  place(listed, { transform: `translateY(${-offset}px)` });
  const beyond = window.innerHeight;
  const lineHeight = grid.height + GAP;
  const first = Math.max(0, Math.floor((top - beyond) / lineHeight) * grid.columns);
  const last = Math.min(shown.length, Math.ceil((top + 2 * beyond) / lineHeight) * grid.columns);
  const wanted = (at) => (at >= first && at < last) || (at === current && at < shown.length);
  for (const [at, card] of cards) {
    if (!wanted(at)) {
      card.remove();
      cards.delete(at);
    }
  }
  for (const at of [...Array(Math.max(0, last - first)).keys()].map((i) => first + i).concat(current)) {
    if (!wanted(at) || cards.has(at)) continue;
    const card = cardOf(shown[at], at);
    const behind = [...cards.keys()].filter((other) => other > at);
    listed.insertBefore(card, behind.length ? cards.get(Math.min(...behind)) : null);
    cards.set(at, card);
  }
}

function renew() {
  const focused = listed.contains(document.activeElement);
  for (const card of cards.values()) card.remove();
  cards.clear();
  measure();
  render();
  if (focused) cards.get(current)?.firstChild.focus({ preventScroll: true });
}

/** Where the window is free below the header, which on a phone scrolls away. */
const free = () => Math.max(0, document.querySelector("header").getBoundingClientRect().bottom) + GAP;

/** Moves the keyboard's place, and scrolls there. */
function go(at, focus = true) {
  if (!shown.length) return;
  const before = cards.get(current)?.firstChild;
  current = Math.min(shown.length - 1, Math.max(0, at));
  before?.setAttribute("tabindex", "-1");
  const top = Math.floor(current / grid.columns) * (grid.height + GAP) + roll.getBoundingClientRect().top;
  if (top < free()) window.scrollBy({ top: top - free(), behavior: "instant" });
  else if (top + grid.height > window.innerHeight - GAP) window.scrollBy({ top: top + grid.height - window.innerHeight + GAP, behavior: "instant" });
  render();
  const card = cards.get(current).firstChild;
  card.setAttribute("tabindex", "0");
  if (focus && !dialog.open) card.focus({ preventScroll: true });
}

const sections = Object.keys(GROUPS).map((group) => chips(group, () => refresh())).filter(Boolean);
byId("groups").append(...sections);
const showHistogram = histogram(byId("histogram"), () => refresh());

/** Filters and sorts anew; the row `keep` stays the current one if it is still shown. */
function refresh(keep = null, fallback = 0) {
  const passing = rows.filter(passesGroups);
  shown = ordered(passing.filter(passesBrush), byId("sort").value);
  current = keep ? shown.indexOf(keep) : 0;
  if (current < 0) current = Math.min(fallback, Math.max(0, shown.length - 1));
  const active = [...filters.chosen.values()].filter((names) => names.size).length + brushed();
  byId("count").textContent = shown.length === rows.length ? counted(rows.length, "row") : `${count(shown.length)} of ${counted(rows.length, "row")}`;
  byId("active").textContent = active ? `(${active})` : "";
  byId("clear").hidden = !active && !filters.text;
  byId("none").hidden = shown.length > 0;
  sections.forEach((section) => section.show());
  showHistogram(passing);
  showTally();
  renew();
  const { top } = byId("count").getBoundingClientRect();
  if (!keep && top < free()) window.scrollBy({ top: top - free(), behavior: "instant" });
}

function showTally() {
  const counts = { keep: 0, unsure: 0, reject: 0 };
  for (const row of rows) if (decisions.has(row.id)) counts[decisions.get(row.id)] += 1;
  byId("tally").replaceChildren(make("div.meter", { "aria-hidden": "true" }, Object.entries(counts).map(([name, n]) => place(make(`div.is-${name}`), { width: `${(100 * n) / rows.length}%` }))));
  const decided = counts.keep + counts.unsure + counts.reject;
  byId("kept").textContent = `${count(decided)} of ${count(rows.length)} decided.${stored ? "" : " This browser does not keep them: save before you close the page."}`;
  byId("save").disabled = decided === 0;
  byId("undo").disabled = undone.length === 0;
  byId("over").hidden = decided === 0;
}

function triage(decision) {
  const row = shown[current];
  if (!row) return;
  const at = current;
  decide([row], decision);
  byId("said").textContent = `${row.name}: ${decision}`;
  settle(row, shown[at + 1] ?? row, at);
}

function undo() {
  const step = undone.pop();
  if (!step) return;
  for (const [id, before] of step) setDecision(id, before);
  if (step.length > 1) {
    byId("said").textContent = `${counted(step.length, "decision")} back`;
    return refresh(shown[current]);
  }
  const [[id, before]] = step;
  const row = rows.find((one) => one.id === id);
  byId("said").textContent = `${row.name}: ${before ?? "undecided"} again`;
  settle(row, row, current);
}

function startOver() {
  const decided = rows.filter((row) => decisions.has(row.id));
  decide(decided, undefined);
  byId("said").textContent = `${counted(decided.length, "decision")} cleared; undo brings them back`;
  refresh(shown[current]);
}

/** After a decision on `row`: shows it, and goes on to the row `next`. */
function settle(row, next, at) {
  if (filters.chosen.get("decision").size) refresh(next, at);
  else {
    sections.forEach((section) => section.show());
    showTally();
    for (const [place, card] of cards) {
      if (shown[place].id !== row.id) continue;
      card.remove();
      cards.delete(place);
    }
    render();
  }
  if (!shown.length) return void dialog.close();
  const place = shown.indexOf(next);
  go(place < 0 ? current : place);
  if (dialog.open) open(current);
}

/** Opens the account of the row at a place, or goes on to it. */
function open(at) {
  const row = shown[at];
  showAccount(row);
  byId("position").textContent = `${count(at + 1)} of ${count(shown.length)}`;
  byId("previous").disabled = at === 0;
  byId("next").disabled = at === shown.length - 1;
  for (const button of byId("marks").children) button.setAttribute("aria-pressed", decisions.get(row.id) === button.dataset.decision);
  if (!dialog.open) dialog.showModal();
  byId("content").focus();
}

function turn(step) {
  if (current + step < 0 || current + step >= shown.length) return;
  go(current + step);
  open(current);
}

function clearFilters() {
  for (const names of filters.chosen.values()) names.clear();
  Object.assign(filters, { text: "", low: 1, high: 5 });
  byId("search").value = "";
  refresh();
}

const editing = (target) => target.matches("input, select, textarea, [role=slider]");

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || editing(event.target)) return;
  const key = event.key.toLowerCase();
  if (DECISIONS[key] && (dialog.open || listed.contains(document.activeElement))) triage(DECISIONS[key]);
  else if (key === "z") undo();
  else if (dialog.open && key === "arrowleft" && !event.target.closest(".scroll")) turn(-1);
  else if (dialog.open && key === "arrowright" && !event.target.closest(".scroll")) turn(1);
  else if (!dialog.open && key === "/") byId("search").focus();
  else return;
  event.preventDefault();
});
listed.addEventListener("keydown", (event) => {
  const page = Math.max(1, Math.floor(window.innerHeight / (grid.height + GAP))) * grid.columns;
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -grid.columns, ArrowDown: grid.columns, PageUp: -page, PageDown: page, Home: -shown.length, End: shown.length };
  if (steps[event.key] === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  go(current + steps[event.key]);
});
listed.addEventListener("click", (event) => {
  const at = [...cards].find(([, card]) => card.contains(event.target))?.[0];
  if (at === undefined) return;
  go(at);
  open(at);
});
listed.addEventListener("focusin", (event) => {
  const at = [...cards].find(([, card]) => card.contains(event.target))?.[0];
  if (at !== undefined && at !== current) go(at, false);
});
dialog.addEventListener("close", () => cards.get(current)?.firstChild.focus({ preventScroll: true }));
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
byId("marks").append(...Object.entries(DECISIONS).map(([key, decision]) => {
  const button = make(`button.chip.is-${decision}`, { type: "button", "aria-keyshortcuts": key }, decision[0].toUpperCase() + decision.slice(1));
  button.dataset.decision = decision;
  button.addEventListener("click", () => triage(decision));
  return button;
}));
byId("close").addEventListener("click", () => dialog.close());
byId("previous").addEventListener("click", () => turn(-1));
byId("next").addEventListener("click", () => turn(1));
byId("save").addEventListener("click", saveDecisions);
byId("undo").addEventListener("click", undo);
byId("over").addEventListener("click", startOver);
byId("clear").addEventListener("click", clearFilters);
byId("none").querySelector("button").addEventListener("click", clearFilters);
byId("sort").addEventListener("change", () => refresh());
byId("search").addEventListener("input", () => {
  filters.text = byId("search").value.trim().toLowerCase().replace(/\s+/g, " ");
  refresh();
});
window.addEventListener("scroll", render, { passive: true });
new ResizeObserver(() => { if (listed.clientWidth) renew(); }).observe(listed.parentElement);

const roomy = window.matchMedia("(min-width: 900px)");
const unfold = () => { byId("panel").open = roomy.matches; };
roomy.addEventListener("change", unfold);
unfold();
const failed = rows.filter((row) => row.error).length;
byId("about").textContent = [counted(pictures.length, "picture"), failed ? counted(failed, "failure") : "no failure"].join(" · ");
refresh();
