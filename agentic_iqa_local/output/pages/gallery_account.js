// The full account of one row in the dialog.
const dialog = byId("account");

function portrait(row, boxes) {
  const picture = pictures[row.picture];
  if (picture.missing) return make("div.portrait.missing", {}, make("p", {}, reasoned({ error: picture.missing, image: row.image })[0]));
  const image = make("img", { alt: row.name, src: address(item("copies", row.picture)), width: picture.size[0], height: picture.size[1] });
  const damage = boxes.map(([left, top, right, bottom], i) => place(make("div.damage", { "aria-hidden": "true" }, make("span", {}, String(i + 1))), {
    left: `${(100 * left) / picture.size[0]}%`, top: `${(100 * top) / picture.size[1]}%`,
    width: `${(100 * (right - left)) / picture.size[0]}%`, height: `${(100 * (bottom - top)) / picture.size[1]}%`,
  }));
  const changed = row.sha256 && picture.sha256 !== row.sha256;
  return make("div.portrait", {}, make("div.frame", {}, image, damage),
    changed ? make("p.alarm", {}, "The file has changed since it was assessed.") : null,
    make("p.soft", {}, `${picture.size[0]} × ${picture.size[1]} pixels, shown as a copy · `,
      make("a", { href: picture.address, target: "_blank", rel: "noopener noreferrer" }, "Open the original")));
}

function rating(row) {
  if (row.error) {
    const [reason, remedy] = reasoned(row);
    return [make("p.failure", {}, make("strong", {}, "Failed. "), reason), remedy ? make("p", {}, make("strong", {}, "What to do: "), remedy) : null];
  }
  if (!row.letter) return [row.answer ? make("p.score", {}, row.answer) : null];
  const verdict = row.held ? "held" : row.verdict;
  return [make("p.score", {}, make(`span.letter.level${row.letter}`, {}, row.letter), make("span", {}, `${number(row.q)} `, make("small", {}, words.get(row.letter)))),
    scale(row.q, row.low === undefined ? null : row),
    verdict ? make(`p.verdict.is-${verdict}`, {}, make("strong", {}, GROUPS.verdict[3](verdict))) : null];
}

/** Fills the dialog with a row. */
function showAccount(row) {
  const { parts, boxes } = item("accounts", row.place);
  byId("heading").textContent = row.name;
  byId("content").replaceChildren(make("div.account", {}, portrait(row, boxes), make("div.facts", {},
    make("div.rating", {}, rating(row)), account(parts),
    make("p.path", {}, row.image), row.sha256 ? make("p.path.soft", {}, `SHA-256 ${row.sha256}`) : null)));
  byId("content").scrollTop = 0;
}
