// The rating page: shows the next picture, sends what a key or a button says of it, and draws what was learned.
import { byId, svg } from "./dom.js";

const STEP = 2000; // milliseconds between two looks at what was learned
let state = null;
let busy = false;

async function send(route, body) {
  const options = body ? { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) } : {};
  const answer = await fetch(`v1/${route}`, options);
  const found = await answer.json();
  if (!answer.ok) throw new Error([found.error.message, found.error.remedy].filter(Boolean).join("; "));
  return found;
}

async function act(route, body) {
  if (busy) return;
  busy = true;
  try {
    show(await send(route, body));
  } catch (error) {
    say(`Not kept: ${error.message}`);
  } finally {
    busy = false;
  }
}

function rate(rating) {
  if (state?.picture !== null) act("ratings", { number: state.picture, rating });
}

function skip() {
  if (state?.picture !== null) act("skips", { number: state.picture });
}

function zoom() {
  const native = byId("stage").classList.toggle("native");
  byId("zoom").setAttribute("aria-pressed", native);
}

function say(text) {
  byId("message").textContent = text;
}

function show(found) {
  const changed = found.picture !== state?.picture;
  state = found;
  if (changed) showPicture();
  byId("name").textContent = found.name ?? "";
  byId("progress").max = found.of;
  byId("progress").value = found.rated;
  const more = [[found.skipped, "skipped"], [found.failed, "could not be read"]];
  byId("count").textContent = [`${found.rated} of ${found.of} rated`, ...more.filter(([n]) => n).map(([n, what]) => `${n} ${what}`)].join(", ");
  byId("advice").textContent = found.advice;
  byId("undo").disabled = found.rated === 0;
  for (const button of [...byId("ratings").children, byId("skip")]) button.disabled = found.picture === null;
  draw(found.steps.filter((step) => step.helped > 0 || step.srcc > 0));
}

function showPicture() {
  const image = byId("picture");
  image.hidden = state.picture === null;
  if (state.picture === null) {
    say(state.finished ? "Every picture is rated or skipped. You can close this page." : "Reading pictures …");
    return;
  }
  say("");
  image.src = `v1/pictures/${state.picture}`;
  image.alt = `The picture to rate, ${state.name}`;
  byId("stage").scrollTo(0, 0);
  if (state.following !== null) new Image().src = `v1/pictures/${state.following}`;
}

function draw(steps) {
  const figure = byId("curve");
  figure.hidden = steps.length < 2;
  if (figure.hidden) return;
  const values = steps.flatMap((step) => [step.srcc, step.srcc_without]);
  const low = Math.floor(Math.min(...values) * 10) / 10;
  const high = Math.max(Math.ceil(Math.max(...values) * 10) / 10, low + 0.1);
  const first = steps[0].ratings;
  const last = Math.max(steps.at(-1).ratings, first + 1);
  const x = (ratings) => 30 + (220 * (ratings - first)) / (last - first);
  const y = (value) => 110 - (100 * (value - low)) / (high - low);
  const line = (name, key) => svg("polyline", { class: `line ${name}`, points: steps.map((step) => `${x(step.ratings)},${y(step[key])}`).join(" ") });
  const dots = steps.map((step) => svg("circle", { class: "fill", cx: x(step.ratings), cy: y(step.srcc), r: 3 }));
  const at = steps.at(-1);
  const label = `After ${at.ratings} ratings SRCC is ${at.srcc.toFixed(2)} with what they teach and ${at.srcc_without.toFixed(2)} without.`;
  figure.querySelector("svg")?.remove();
  figure.append(svg("svg", { viewBox: "0 0 260 132", role: "img", "aria-label": label },
    svg("line", { class: "axis", x1: 30, x2: 250, y1: 110, y2: 110 }),
    svg("text", { x: 0, y: y(low) + 4 }, low.toFixed(1)), svg("text", { x: 0, y: y(high) + 4 }, high.toFixed(1)),
    svg("text", { x: 30, y: 126 }, `${first}`), svg("text", { x: 250, y: 126, "text-anchor": "end" }, `${last} ratings`),
    line("without", "srcc_without"), line("with", "srcc"), dots));
}

const keys = { s: skip, u: () => act("undo", {}), z: zoom };

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const key = event.key.toLowerCase();
  if (/^[1-5]$/.test(key)) rate(Number(key));
  else if (keys[key]) keys[key]();
});
byId("ratings").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) rate(Number(button.dataset.rating));
});
byId("skip").addEventListener("click", skip);
byId("undo").addEventListener("click", keys.u);
byId("zoom").addEventListener("click", zoom);

async function look() {
  try {
    if (!busy) {
      const found = await send("state");
      if (!busy) show(found);
    }
  } catch {
    say("The command rate has ended, or cannot be reached.");
  }
  setTimeout(look, state?.picture === null ? 300 : STEP);
}
look();
