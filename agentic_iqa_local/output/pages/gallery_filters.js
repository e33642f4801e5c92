// Which rows are shown, and in which order.
const SEVERITIES = ["slight", "moderate", "severe", "extreme"];
const BINS = 40;
const filters = { text: "", low: 1, high: 5, chosen: new Map() }; // chosen: group → set of names; none: all pass

const kindOf = (row) => (row.error ? "failed" : row.letter ?? "answer");
const severity = (row) => SEVERITIES.indexOf((row.worst ?? "").split(" ")[0]);
const width = (row) => (row.low === undefined ? undefined : row.high - row.low);
const WIDTHS = ["half", "one", "two", "wide"]; // of an interval: up to 0.5, 1 and 2 of q, and beyond
const widthOf = (row) => (row.low === undefined ? "none" : WIDTHS[[0.5, 1, 2].filter((most) => width(row) > most + 1e-9).length]);
const VERDICTS = ["pass", "unsure", "fail"];

// group → [title, the names that a row has in it, names in order, what a name is called]
const GROUPS = {
  level: ["Level", (row) => [kindOf(row)], [...words.keys(), "answer", "failed"],
    (name) => ({ answer: "Answer without a rating", failed: "Failed" })[name] ?? `${name} ${words.get(name)}`],
  verdict: ["Gate", (row) => [row.verdict ?? "none", ...(row.held ? ["held"] : [])], [...VERDICTS, "held"],
    (name) => ({ pass: "Pass", unsure: "Unsure", fail: "Fail", held: "Held back" })[name]],
  width: ["Width of the interval", (row) => [widthOf(row)], [...WIDTHS, "none"],
    (name) => ({ half: "up to 0.5", one: "0.5 to 1", two: "1 to 2", wide: "more than 2", none: "No interval" })[name]],
  type: ["Distortion seen", (row) => row.types ?? ["none"],
    [...new Set(rows.flatMap((row) => row.types ?? []))].sort().concat("none"),
    (name) => (name === "none" ? "None seen" : name)],
  decision: ["Decision", (row) => [decisions.get(row.id) ?? "open"], ["keep", "unsure", "reject", "open"],
    (name) => ({ keep: "Keep", unsure: "Unsure", reject: "Reject", open: "Undecided" })[name]],
};

const haystacks = new Map();
function haystack(row) {
  if (!haystacks.has(row.place)) {
    const parts = [row.image, row.query, row.why, row.answer, row.worst, row.error];
    haystacks.set(row.place, parts.filter(Boolean).join("\n").toLowerCase());
  }
  return haystacks.get(row.place);
}

function passesGroups(row) {
  for (const [group, names] of filters.chosen) {
    if (names.size && !GROUPS[group][1](row).some((name) => names.has(name))) return false;
  }
  return filters.text.split(" ").every((word) => haystack(row).includes(word));
}

const brushed = () => filters.low > 1 || filters.high < 5;
const passesBrush = (row) => !brushed() || (row.q !== undefined && !row.error && row.q >= filters.low && row.q <= filters.high);

// order → [figure of a row, or undefined where it has none; 1 rising or -1 falling]
const ORDERS = {
  file: [(row) => row.place, 1],
  worst: [(row) => row.q, 1],
  best: [(row) => row.q, -1],
  level: [(row) => (row.letter ? row.letter.charCodeAt(0) : undefined), 1],
  wide: [width, -1],
  narrow: [width, 1],
  verdict: [(row) => (row.verdict ? VERDICTS.indexOf(row.verdict) : undefined), 1],
  name: [() => 0, 1],
  distortion: [(row) => (severity(row) < 0 ? undefined : severity(row)), -1],
};
const collator = new Intl.Collator("en", { numeric: true });
// The place of each row in the order of names: compared once, since 20,000 names take half a second.
const byName = [...rows].sort((one, other) => collator.compare(one.image, other.image) || one.place - other.place);
const nameRank = new Map(byName.map((row, rank) => [row, rank]));

/** The rows in an order; what lacks its figure comes last, and equals stand in the order of their names. */
function ordered(found, order) {
  const [figure, sign] = ORDERS[order];
  if (order === "file") return found;
  const figures = new Map(found.map((row) => [row, row.error && order !== "name" ? undefined : figure(row)]));
  return found.sort((one, other) => {
    const [a, b] = [figures.get(one), figures.get(other)];
    if ((a === undefined) !== (b === undefined)) return a === undefined ? 1 : -1;
    return sign * ((a ?? 0) - (b ?? 0)) || (order === "distortion" ? collator.compare(one.worst ?? "", other.worst ?? "") : 0) ||
      nameRank.get(one) - nameRank.get(other);
  });
}

/** The histogram of q with two handles: draw a range with a pointer, or move a handle with the arrow keys. */
function histogram(parent, changed) {
  const bars = Array.from({ length: BINS }, (_, bin) => draw("rect", { x: bin * 6 + 0.5, width: 5, rx: 1 }));
  const svg = draw("svg", { viewBox: `0 0 ${BINS * 6} 72`, preserveAspectRatio: "none", "aria-hidden": "true" }, bars);
  const box = make("div.brush", {}, svg);
  const range = make("div.range");
  const handles = ["low", "high"].map((end) => make("div.handle", {
    role: "slider", tabindex: 0, "aria-label": end === "low" ? "Lowest quality shown" : "Highest quality shown",
    "aria-valuemin": 1, "aria-valuemax": 5,
  }));
  const note = make("p.soft.range-note");
  const marks = make("div.marks", { "aria-hidden": "true" }, [1, 2, 3, 4, 5].map((q) => place(make("span", {}, String(q)), { left: share(q) })));
  box.append(range, ...handles);
  parent.append(box, marks, note);

  function show(found) {
    const counts = new Array(BINS).fill(0);
    for (const row of found) if (row.q !== undefined && !row.error) counts[Math.min(BINS - 1, Math.floor((row.q - 1) * 10 + 1e-9))] += 1;
    const most = Math.max(1, ...counts);
    bars.forEach((bar, bin) => {
      const [from, to] = [1 + bin / 10, 1.1 + bin / 10];
      const height = counts[bin] ? Math.max(2, (counts[bin] / most) * 70) : 0;
      bar.setAttribute("y", 72 - height);
      bar.setAttribute("height", height);
      const letter = "EDCBA"[Math.min(4, Math.floor((from + to) / 2 - 0.5))];
      bar.setAttribute("class", `level${letter}${to <= filters.low + 1e-6 || from >= filters.high - 1e-6 ? " off" : ""}`);
    });
    place(range, { left: share(filters.low), right: `calc(100% - ${share(filters.high)})` });
    range.hidden = !brushed();
    handles.forEach((handle, end) => {
      const value = end ? filters.high : filters.low;
      place(handle, { left: share(value) });
      handle.setAttribute("aria-valuenow", value.toFixed(1));
    });
    const rated = counts.reduce((sum, n) => sum + n, 0);
    note.textContent = brushed() ? `q from ${number(filters.low, 1)} to ${number(filters.high, 1)}` : `${counted(rated, "rating")}; draw a range to filter`;
  }

  const snapped = (q) => Math.round(Math.min(5, Math.max(1, q)) * 10) / 10;
  const under = (event) => {
    const area = box.getBoundingClientRect();
    return snapped(1 + (4 * (event.clientX - area.left)) / area.width);
  };
  let fixed = null; // the end that stays while a range is drawn
  box.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    const end = handles.indexOf(event.target);
    fixed = end < 0 ? under(event) : end ? filters.low : filters.high;
    box.setPointerCapture(event.pointerId);
    event.preventDefault();
    if (end >= 0) handles[end].focus();
  });
  box.addEventListener("pointermove", (event) => {
    if (fixed === null) return;
    const other = under(event);
    if (other === fixed) return;
    [filters.low, filters.high] = [Math.min(fixed, other), Math.max(fixed, other)];
    changed();
  });
  for (const type of ["pointerup", "pointercancel"]) box.addEventListener(type, () => { fixed = null; });
  box.addEventListener("dblclick", () => { [filters.low, filters.high] = [1, 5]; changed(); });
  handles.forEach((handle, end) => handle.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -0.1, ArrowDown: -0.1, ArrowRight: 0.1, ArrowUp: 0.1, PageDown: -0.5, PageUp: 0.5, Home: -4, End: 4 };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    if (end) filters.high = Math.max(filters.low + 0.1, snapped(filters.high + step));
    else filters.low = Math.min(filters.high - 0.1, snapped(filters.low + step));
    changed();
  }));
  return show;
}

/** Buttons that filter: one group under a title. The ones of no row are left out. */
function chips(group, changed) {
  const [title, namesOf, order, called] = GROUPS[group];
  const has = new Map();
  for (const row of rows) for (const name of namesOf(row)) has.set(name, (has.get(name) ?? 0) + 1);
  const names = group === "decision" ? order : order.filter((name) => has.get(name));
  const chosen = new Set();
  filters.chosen.set(group, chosen);
  const buttons = names.map((name) => {
    const button = make(`button.chip.is-${name.replaceAll(" ", "-")}`, { type: "button", "aria-pressed": "false" }, called(name), " ", make("small"));
    button.addEventListener("click", () => {
      if (!chosen.delete(name)) chosen.add(name);
      changed();
    });
    return button;
  });
  const id = `group-${group}`;
  const section = make("section", { "aria-labelledby": id }, make("h2", { id }, title), make("div.chips", {}, buttons));
  section.show = () => {
    const tally = new Map();
    if (group === "decision") for (const row of rows) for (const name of namesOf(row)) tally.set(name, (tally.get(name) ?? 0) + 1);
    buttons.forEach((button, i) => {
      button.setAttribute("aria-pressed", chosen.has(names[i]));
      button.lastChild.textContent = count((group === "decision" ? tally : has).get(names[i]) ?? 0);
    });
  };
  return names.length > 1 ? section : null;
}
