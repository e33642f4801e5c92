// The full account of one row in the dialog.
const dialog = byId("account");

function section(title, ...children) {
  const found = children.flat().filter(Boolean);
  return found.length ? make("section", {}, make("h3", {}, title), found) : null;
}

const line = (text, kind = "p") => (text ? make(kind, {}, text) : null);
const list = (texts, kind = "ul") => (texts?.length ? make(kind, {}, texts.map((text) => make("li", {}, text))) : null);

function scale(row) {
  const bands = [["E", 1, 1.5], ["D", 1.5, 2.5], ["C", 2.5, 3.5], ["B", 3.5, 4.5], ["A", 4.5, 5]].map(([letter, from, to]) =>
    place(make(`div.band.level${letter}`, {}, make("span", {}, to - from < 1 ? letter : words.get(letter))), { flexGrow: to - from }));
  const marks = [place(make("div.mark"), { left: share(row.q) })];
  if (row.low !== undefined) {
    marks.unshift(place(make("div.interval"), { left: share(row.low), right: `calc(100% - ${share(row.high)})` }));
  }
  return make("div.scale", { "aria-hidden": "true" }, make("div.bands", {}, bands), make("div.track", {}, marks));
}

function barsOf(entries) {
  return make("table.bars", {}, make("tbody", {}, entries.map(([name, p, letter]) => make("tr", {},
    make("th", { scope: "row" }, name),
    make("td.wide", {}, make("div.bar-track", {}, place(make(`div.fill.level${letter}`), { width: `${100 * p}%` }))),
    make("td", {}, number(p))))));
}

function tableOf(headers, lines) {
  if (!lines.length) return null;
  return make("div.scroll", { tabindex: 0, role: "region", "aria-label": headers.join(", ") }, make("table", {},
    make("thead", {}, make("tr", {}, headers.map((header) => make("th", { scope: "col" }, header)))),
    make("tbody", {}, lines.map((cells) => make("tr", {}, cells.map((cell) => make("td", {}, cell ?? "—")))))));
}

function portrait(row, told) {
  const picture = pictures[row.picture];
  if (picture.missing) return make("div.portrait.missing", {}, make("p", {}, reasoned({ error: picture.missing, image: row.image })[0]));
  const large = item("large", row.picture);
  const image = make("img", { alt: row.name, src: address(large ?? item("small", row.picture)), width: picture.size[0], height: picture.size[1] });
  const boxes = (told.map?.worst ?? []).map((worst, i) => place(make("div.damage", { "aria-hidden": "true" }, make("span", {}, String(i + 1))), {
    left: `${(100 * worst.box[0]) / picture.size[0]}%`, top: `${(100 * worst.box[1]) / picture.size[1]}%`,
    width: `${(100 * (worst.box[2] - worst.box[0])) / picture.size[0]}%`, height: `${(100 * (worst.box[3] - worst.box[1])) / picture.size[1]}%`,
  }));
  const changed = row.sha256 && picture.sha256 !== row.sha256;
  return make("div.portrait", {}, make("div.frame", {}, image, boxes),
    changed ? make("p.alarm", {}, "The file has changed since it was assessed.") : null,
    make("p.soft", {}, `${picture.size[0]} × ${picture.size[1]} pixels${large ? "" : ", shown as its thumbnail"} · `,
      make("a", { href: picture.address, target: "_blank", rel: "noopener noreferrer" }, "Open the original")));
}

function verdicts(row, told) {
  const found = [];
  if (told.gate) {
    const said = { pass: "Passes", fail: "Fails", unsure: "Unsure" }[told.gate.verdict];
    found.push(make(`p.verdict.is-${told.gate.verdict}`, {}, make("strong", {}, `${said}: `), `it is ${told.gate.at_least} or better with ${Math.round(100 * told.gate.probability)} % probability`));
  }
  if (told.not_sure) found.push(make("p.verdict.is-unsure", {}, make("strong", {}, "Held back: "), told.not_sure.replace(/^not sure: /, "")));
  return found;
}

function rating(row, told) {
  if (row.error) {
    const [reason, remedy] = reasoned(row);
    return [make("p.failure", {}, make("strong", {}, "Failed. "), reason), remedy ? make("p", {}, make("strong", {}, "What to do: "), remedy) : null];
  }
  if (!row.letter) return [row.answer ? make("p.score", {}, row.answer) : null, ...verdicts(row, told)];
  return [make("p.score", {}, make(`span.letter.level${row.letter}`, {}, row.letter), make("span", {}, `${number(row.q)} `, make("small", {}, words.get(row.letter)))),
    scale(row), ...verdicts(row, told)];
}

function letters(told) {
  const choices = told.choices;
  return Object.entries(told.probabilities).map(([letter, p], i) =>
    [choices ? `${letter}. ${choices[i] ?? ""}` : `${letter} ${words.get(letter) ?? ""}`, p, choices ? "N" : letter]);
}

function toolLines(told) {
  return (told.tools ?? []).map((tool) => [
    tool.tool_name, tool.error ? `failed: ${tool.error}` : `${number(tool.raw_score, 3)}${tool.scale ? ` (${tool.scale})` : ""}`,
    tool.error ? null : number(tool.normalized_score),
    [tool.object_name === "Global" ? "" : tool.object_name, tool.trailing ? "checks only" : "", tool.outvoted ? "outvoted" : "",
      tool.fallback ? "stands in" : ""].filter(Boolean).join(", ") || (told.probabilities && !told.choices && !tool.error ? "votes" : ""),
    `${number(tool.execution_time)} s`,
  ]);
}

function evidence(told) {
  if (!told.found) return line(told.nothing);
  return make("ul", {}, told.found.map(([seen, explanation]) => make("li", {}, make("strong", {}, `${seen}: `), explanation)));
}

function cost(told) {
  const tokens = told.tokens;
  return [`${number(told.seconds ?? 0)} s`, tokens ? `${count(tokens.prefilled)} tokens read, ${count(tokens.reused)} reused, ${count(tokens.decoded)} written` : "",
    told.model?.name ? `model ${told.model.name}` : "", told.pipeline ? `pipeline ${told.pipeline}` : ""].filter(Boolean).join(" · ");
}

/** Fills the dialog with a row. */
function showAccount(row) {
  const told = item("accounts", row.place) ?? {};
  byId("heading").textContent = row.name;
  const concluded = (pass) => told.choices?.["ABCDEFGHIJ".indexOf(pass.concluded)] ?? pass.concluded;
  const passes = told.passes?.length > 1 ? told.passes.map((pass) => [String(pass.number), pass.asked ?? "first look", concluded(pass), pass.gaps.join("; ")]) : [];
  const facts = [
    make("div.rating", {}, rating(row, told)),
    section("Question", line(told.query), told.reference ? line(`Reference: ${told.reference}`, "p.soft") : null),
    section("Why", line(told.quality_reasoning)),
    section(told.choices ? "Answers" : told.probabilities ? "The model's letters" : "What it rests on", told.probabilities ? barsOf(letters(told)) : null, line(told.rests_on, "p.soft")),
    section("How sure", line(told.sure)),
    section("Evidence", evidence(told)),
    section("Tools", tableOf(["Tool", "Raw", "1–5", "Vote", "Time"], toolLines(told))),
    section("Where", list(told.where)),
    section("Passes", tableOf(["Pass", "Asked", "Concluded", "Still open"], passes)),
    section("Warnings", list(told.warnings)),
    section("Corrections", list(told.plan_corrections ?? [])),
    section("Cost", line(cost(told)), line(told.model?.notice, "p.soft")),
    section("File", line(row.image, "p.path"), line(row.sha256 ? `SHA-256 ${row.sha256}` : "", "p.path.soft")),
  ];
  byId("content").replaceChildren(make("div.account", {}, portrait(row, told), make("div.facts", {}, facts.filter(Boolean))));
  byId("content").scrollTop = 0;
}
