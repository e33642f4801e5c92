// The picture that was assessed: the heat map over it, and the reference beside or below it.
import { card, el, svg } from "./dom.js";
import { letterOf } from "./scale.js";

export function pictures(row, image, reference) {
  if (!image) return null;
  const shown = el("img", { src: image, alt: `The picture ${row.image}` });
  const pane = el("figure", { class: "pane" }, shown);
  const frame = el("div", { class: "frame" }, pane);
  shown.addEventListener("error", () => frame.replaceChildren(
    el("p", { class: "empty" }, "This browser cannot show the format. The service could read it.")));
  const controls = el("div", { class: "controls" });
  if (row.map) overlay(row.map, shown, pane, controls);
  if (reference) compared(frame, pane, controls, reference);
  return card(null, frame, controls.children.length ? controls : null);
}

function slider(label, value, change) {
  const input = el("input", { type: "range", min: 0, max: 100, value, oninput: () => change(Number(input.value)) });
  change(value);
  return el("label", { class: "slider" }, label, input);
}

function overlay(map, shown, pane, controls) {
  const [width, height] = [map.xs.at(-1), map.ys.at(-1)];
  const layer = svg("svg", { class: "layer", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img",
    "aria-label": "Quality from place to place" });
  const cells = svg("g");
  map.q.forEach((line, y) => line.forEach((q, x) => {
    if (q === null) return;
    cells.append(svg("rect", { x: map.xs[x], y: map.ys[y], width: map.xs[x + 1] - map.xs[x], height: map.ys[y + 1] - map.ys[y],
      class: `fill-${letterOf(q)}` }, svg("title", {}, `q ${q.toFixed(2)}`)));
  }));
  // places are pixels of the whole picture, whose frame the map leaves out
  const fit = () => layer.setAttribute("viewBox", `0 0 ${shown.naturalWidth} ${shown.naturalHeight}`);
  if (shown.naturalWidth) fit(); else shown.addEventListener("load", fit);
  layer.append(cells);
  map.worst.forEach(({ box: [left, top, right, bottom] }, index) => layer.append(
    svg("rect", { x: left, y: top, width: right - left, height: bottom - top, class: "box" }),
    svg("text", { x: left + width / 80, y: top + width / 22, "font-size": width / 24, class: "box-name" }, String(index + 1))));
  pane.append(layer);
  controls.append(slider("Heat map", 45, (value) => cells.setAttribute("opacity", value / 100)));
}

// The reference: swiped over the picture, by a slider or by dragging over it, or beside it.
function compared(frame, pane, controls, reference) {
  const other = el("figure", { class: "pane reference" }, el("img", { src: reference, alt: "The reference" }), el("figcaption", {}, "Reference"));
  const edge = el("span", { class: "edge", "aria-hidden": "true" });
  pane.append(el("figcaption", {}, "Picture"));
  frame.append(other, edge);
  const swipe = slider("Reference from the left", 50, (value) => {
    other.style.setProperty("clip-path", `inset(0 ${100 - value}% 0 0)`);
    edge.style.setProperty("left", `${value}%`);
  });
  const [input] = swipe.getElementsByTagName("input");
  const drag = (event) => {
    if (frame.classList.contains("beside") || !(event.buttons & 1)) return;
    const area = frame.getBoundingClientRect();
    input.value = (100 * (event.clientX - area.left)) / area.width;
    input.dispatchEvent(new Event("input"));
  };
  frame.addEventListener("pointerdown", drag);
  frame.addEventListener("pointermove", drag);
  frame.addEventListener("dragstart", (event) => event.preventDefault());
  const side = el("button", { type: "button", "aria-pressed": "false", onclick: () => {
    const beside = frame.classList.toggle("beside");
    side.setAttribute("aria-pressed", String(beside));
    swipe.hidden = beside;
  } }, "Side by side");
  frame.classList.add("swiped");
  controls.append(swipe, side);
}
