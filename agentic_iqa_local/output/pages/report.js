"use strict";
// Tables sort by the column whose header is pressed; print shows every table, folded or not.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const header = button.parentElement;
    const rising = header.getAttribute("aria-sort") !== "ascending";
    for (const other of header.parentElement.children) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", rising ? "ascending" : "descending");
    const body = header.closest("table").tBodies[0];
    const rows = [...body.rows];
    const missing = (cell) => cell.textContent === "—" || cell.textContent === "";
    rows.sort((one, other) => {
      const [a, b] = [one.cells[header.cellIndex], other.cells[header.cellIndex]];
      if (missing(a) || missing(b)) return missing(a) - missing(b);
      const numbers = parseFloat(a.textContent) - parseFloat(b.textContent);
      const order = Number.isNaN(numbers) ? a.textContent.localeCompare(b.textContent) : numbers;
      return rising ? order : -order;
    });
    body.append(...rows);
  });
}
const print = window.matchMedia("print");
let opened = [];
print.addEventListener("change", () => {
  if (print.matches) opened = [...document.querySelectorAll("details.table:not([open])")];
  for (const details of opened) details.open = print.matches;
});
