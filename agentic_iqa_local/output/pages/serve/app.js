// The form: what to send, how far it is, and what came of it.
import { answer, batch, chosen as chosenAnswer, comparison, failed, spoken } from "./answer.js";
import { byId, el, number } from "./dom.js";
import { scale } from "./scale.js";
import { Refusal, ask, askEach, info, useToken } from "./talk.js";

const chosen = { image: [], reference: [] };
const past = [];
let limits = null;
let running = null;
let answered = false; // then the next picture begins a new question

const PRESETS = [
  { label: "Rate the quality", query: "" },
  { label: "Which distortion dominates?", query: "Which distortion dominates?", choices: ["Blur", "Noise", "Compression", "None"] },
  { label: "Is it sharp enough?", query: "Is the picture sharp enough to print?", choices: ["Yes", "No"] },
  { label: "Too dark or too bright?", query: "Is the picture too dark or too bright?", choices: ["Too dark", "Too bright", "Neither"] },
];

const DOING = {
  planner: "Planning", executor: "Gathering evidence", summarizer: "Weighing and concluding", tool: "Measuring", map: "Mapping the damage",
  comparison: "Comparing", replan: "Planning again",
};

function choose(kind, files) {
  const pictures = [...files].filter((file) => file.size);
  if (!pictures.length) return;
  chosen[kind] = kind === "reference" ? [pictures[0]] : [...(answered ? [] : chosen.image), ...pictures];
  if (kind === "image") answered = false;
  show(kind);
}

function show(kind) {
  const list = byId(kind === "image" ? "images" : "references");
  list.replaceChildren(...chosen[kind].map((file, index) => {
    const address = URL.createObjectURL(file);
    const picture = el("img", { src: address, alt: "", onload: () => URL.revokeObjectURL(address) });
    picture.addEventListener("error", () => picture.remove());
    const remove = el("button", { type: "button", class: "plain", "aria-label": `Remove ${file.name}`, onclick: () => {
      chosen[kind].splice(index, 1);
      show(kind);
      byId(kind).focus();
    } }, "✕");
    return el("li", {}, picture, el("span", { title: file.name }, file.name), remove);
  }));
  settle();
}

function settle() {
  const number = chosen.image.length;
  byId("go").disabled = !number || running !== null;
  byId("go").textContent = number < 2 ? "Assess" : `${route() === "compare" ? "Compare" : "Assess"} ${number} pictures`;
  byId("each-field").hidden = number < 2;
  for (const id of ["question", "map-field", "options"]) byId(id).hidden = route() === "compare";
}

function route() {
  if (chosen.image.length < 2) return "assess";
  return byId("each").checked ? "batches" : "compare";
}

function receiver(kind) {
  const area = byId(`drop-${kind}`);
  const input = byId(kind);
  input.addEventListener("change", () => {
    choose(kind, input.files);
    input.value = "";
  });
  for (const name of ["dragover", "dragleave", "drop"]) {
    area.addEventListener(name, (event) => {
      event.preventDefault();
      event.stopPropagation();
      document.body.classList.remove("dragging");
      area.classList.toggle("over", name === "dragover");
      if (name === "drop") choose(kind, event.dataTransfer.files);
    });
  }
}

// A short name for each file, as the answer will tell it: each once, without what a form cannot carry.
function named(files) {
  const taken = new Set();
  return files.map((file) => {
    const short = [...file.name.replace(/[\p{C}\p{Zl}\p{Zp}"/\\]/gu, "_")].slice(0, 120).join("");
    let name = short;
    for (let number = 2; taken.has(name); number += 1) name = `${short} (${number})`;
    taken.add(name);
    return name;
  });
}

function form(names) {
  const data = new FormData();
  chosen.image.forEach((file, i) => data.append(names.length > 1 ? "images" : "image", file, names[i]));
  if (chosen.reference.length) data.append("reference", chosen.reference[0], chosen.reference[0].name);
  if (route() === "compare") return data;
  for (const id of ["query", "pipeline", "mode", "at_least", "target_width"]) {
    const value = byId(id).value.trim();
    if (value) data.append(id, value);
  }
  for (const line of byId("choices").value.split("\n")) if (line.trim()) data.append("choices", line.trim());
  if (byId("map").checked) data.append("map", "true");
  return data;
}

function tooMuch() {
  const files = [...chosen.image, ...chosen.reference];
  const large = files.find((file) => limits && file.size > limits.bytes);
  if (large) return [`${large.name} is larger than this service takes`, `at most ${Math.floor(limits.bytes / 2 ** 20)} MiB in one request`];
  if (limits && chosen.image.length > limits.pictures) return [`these are more pictures than this service takes`, `at most ${limits.pictures} at once`];
  return null;
}

async function submit(event) {
  event.preventDefault();
  if (running || !chosen.image.length) return;
  const refused = tooMuch();
  if (refused) return fail(...refused);
  if (byId("token").value) useToken(byId("token").value);
  const sent = { images: [...chosen.image], names: named(chosen.image), reference: chosen.reference[0], route: route() };
  running = new AbortController();
  byId("cancel").hidden = false;
  settle();
  const progress = steps();
  try {
    const send = sent.route === "batches" ? askEach : ask;
    keep(sent.route, await send(sent.route, form(sent.names), progress.tell, running.signal), sent);
  } catch (error) {
    if (error.name === "AbortError") idle("Cancelled", "Nothing was assessed.");
    else if (error instanceof Refusal) refusal(error);
    else fail("The service does not answer", "see whether it still runs, then ask again");
  } finally {
    progress.end();
    running = null;
    byId("cancel").hidden = true;
    settle();
  }
}

function refusal(error) {
  if (error.status === 401) {
    byId("token-field").hidden = false;
    byId("token").focus();
  }
  const wait = error.wait ? `ask again in about ${error.wait} s` : null;
  fail(error.message, error.remedy ?? wait);
}

function fail(message, remedy) {
  say("");
  byId("answer").replaceChildren(el("div", { class: "failed", role: "alert" }, el("strong", {}, message), remedy && el("p", {}, remedy)));
}

const say = (text) => { byId("status").textContent = text; };

function idle(title, text) {
  say(title);
  byId("answer").replaceChildren(el("div", { class: "empty" }, el("strong", {}, title), el("p", {}, text), scale(null, null)));
}

function steps() {
  const list = el("ol");
  const began = performance.now();
  const open = new Map();
  byId("progress").replaceChildren(list);
  byId("progress").hidden = false;
  byId("answer").replaceChildren();
  let word = "Sending";
  const clock = setInterval(() => {
    time.textContent = `${number((performance.now() - began) / 1000, 0)} s`;
  }, 500);
  const time = el("span", { class: "soft", "aria-hidden": "true" }, "0 s");
  const now = el("strong", {}, word);
  const tellNow = (text) => {
    now.textContent = word = text;
    say(text);
  };
  const { top } = byId("result").getBoundingClientRect();
  if (top < 0 || top > innerHeight / 2) byId("result").scrollIntoView({ block: "start" });
  byId("progress").prepend(el("p", { class: "now" }, now, time));
  tellNow(word);
  return {
    tell(name, data) {
      if (name === "batch") return tellNow(`${data.done} of ${data.total} assessed`);
      if (name === "queued") {
        return tellNow(data.position > 0 ? `Waiting: ${data.position} before this one` : "Begun");
      }
      const key = `${data.role} ${data.round} ${data.what ?? ""}`;
      if (data.state === "started") {
        tellNow(`${DOING[data.role] ?? data.role}${data.what ? `: ${data.what}` : ""}${data.round > 1 ? ` (pass ${data.round})` : ""}`);
        const item = el("li", { class: "running" }, word);
        open.set(key, item);
        list.append(item);
      } else {
        open.get(key)?.classList.remove("running");
      }
    },
    end() {
      clearInterval(clock);
      byId("progress").hidden = true;
    },
  };
}

function keep(route, { found, accounts }, sent) {
  const one = { route, found, accounts, sent };
  past.unshift(one);
  answered = true;
  byId("history-part").hidden = false;
  present(one);
}

let addresses = [];
function present(one) {
  addresses.forEach((address) => URL.revokeObjectURL(address));
  const pictures = one.sent.images.map((file) => URL.createObjectURL(file));
  const reference = one.sent.reference && URL.createObjectURL(one.sent.reference);
  addresses = [...pictures, reference].filter(Boolean);
  const named = one.sent.names.map((name, i) => [name, pictures[i]]);
  const several = { compare: comparison, batches: batch }[one.route];
  byId("answer").replaceChildren(several ? several(one.found, one.accounts, named) : answer(one.found, one.accounts, pictures[0], reference));
  say(announced(one));
  byId("history").replaceChildren(...past.map((other) => el("li", {}, el("button", {
    type: "button", "aria-current": String(other === one), onclick: () => present(other),
  }, el("span", {}, other.sent.names.join(", ")), el("span", { class: "soft" }, short(other))))));
  byId("result").focus({ preventScroll: true });
  byId("result").scrollIntoView({ block: "start" });
}

function announced({ route, found }) {
  if (route === "batches") return `${found.rows.length} pictures assessed.`;
  if (route === "compare") return failed(found) ? "The pictures could not be compared." : "Compared.";
  return found.error ? "It could not be assessed." : `Assessed: ${spoken(found)}`;
}

function short({ route, found }) {
  if (route === "batches") return `${found.rows.length} pictures`;
  if (failed(found)) return "failed";
  if (route === "compare") return "compared";
  return found.q === null ? chosenAnswer(found).slice(0, 24) : `${found.final_answer} ${number(found.q)}`;
}

function presets(all) {
  const group = byId("presets");
  const press = (preset, button) => {
    byId("query").value = preset.query;
    byId("choices").value = (preset.choices ?? []).join("\n");
    for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
  };
  for (const preset of all) {
    const button = el("button", { type: "button", "aria-pressed": "false", onclick: () => press(preset, button) }, preset.label);
    group.append(button);
  }
  group.firstElementChild?.setAttribute("aria-pressed", "true");
  for (const id of ["query", "choices"]) {
    byId(id).addEventListener("input", () => {
      all.forEach(({ query, choices }, i) => {
        const same = byId("query").value === query && byId("choices").value === (choices ?? []).join("\n");
        group.children[i].setAttribute("aria-pressed", String(same));
      });
    });
  }
}

async function begin() {
  receiver("image");
  receiver("reference");
  for (const name of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(name, (event) => {
      event.preventDefault();
      document.body.classList.toggle("dragging", name === "dragover");
      if (name === "drop") choose("image", event.dataTransfer.files);
    });
  }
  document.addEventListener("paste", (event) => choose("image", event.clipboardData.files));
  byId("ask").addEventListener("submit", submit);
  byId("each").addEventListener("change", settle);
  byId("cancel").addEventListener("click", () => running?.abort());
  presets(PRESETS);
  idle("How good is the picture?", "It is judged on this service's machine and not kept.");
  say("");
  try {
    const about = await info();
    limits = about.limits;
    byId("engine").textContent = `${about.model} on ${about.device}, version ${about.version}`;
    byId("token-field").hidden = !about.token_required;
    byId("notice").hidden = !about.small_model;
    byId("notice").textContent = "The small embedded model answers here. It shows how the service works; a large model judges better.";
  } catch {
    fail("The service does not answer", "see whether it still runs, then load this page again");
  }
}

begin();
