// Requests to the service, and its answers as a stream of events.
let token = sessionStorage.getItem("token") ?? "";

export function useToken(value) {
  token = value;
  sessionStorage.setItem("token", value);
}

export class Refusal extends Error {
  constructor(status, error, wait) {
    super(error?.message ?? `the service answered with status ${status}`);
    this.status = status;
    this.remedy = error?.remedy ?? null;
    this.wait = wait;
  }
}

export async function info() {
  const answer = await fetch("v1/info");
  if (!answer.ok) throw await refusal(answer);
  return answer.json();
}

// Sends a form; calls tell(name, data) for each event. Resolves with the answer and the accounts of its pictures.
export async function ask(route, form, tell, signal) {
  const headers = { Accept: "text/event-stream", ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const answer = await fetch(`v1/${route}`, { method: "POST", body: form, headers, signal });
  if (!answer.ok) throw await refusal(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let accounts = [];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Refusal(0, { message: "the service ended the connection before it answered", remedy: "ask again" });
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const found = /^event: (\w+)\ndata: (.*)$/s.exec(part);
      if (!found) continue;
      const [name, data] = [found[1], JSON.parse(found[2])];
      if (name === "error") throw new Refusal(answer.status, data.error);
      if (name === "row" || name === "comparison") return { found: data, accounts };
      if (name === "accounts") accounts = data;
      else tell(name, data);
    }
  }
}

// Sends pictures as a batch, waits until all have rows, takes them with the gallery, and deletes the batch there.
export async function askEach(route, form, tell, signal) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const send = async (address, options = {}) => {
    const answer = await fetch(`v1/${route}${address}`, { headers, signal, ...options });
    if (!answer.ok) throw await refusal(answer);
    return answer;
  };
  let about = await (await send("", { method: "POST", body: form })).json();
  const place = `/${about.id}`;
  try {
    while (about.state !== "finished") {
      tell("batch", about);
      await new Promise((done) => setTimeout(done, 500));
      about = await (await send(place)).json();
      if (about.state === "stopped") throw new Refusal(503, about.error);
    }
    const lines = (await (await send(`${place}/rows`)).text()).trim().split("\n");
    const rows = lines.map((line) => JSON.parse(line));
    const gallery = await (await send(`${place}/gallery`)).text();
    return { found: { rows, gallery }, accounts: await (await send(`${place}/accounts`)).json() };
  } finally {
    fetch(`v1/${route}${place}`, { method: "DELETE", headers, keepalive: true });
  }
}

async function refusal(answer) {
  let error = null;
  try {
    error = (await answer.json()).error;
  } catch {
    // not the service's own words, a proxy's perhaps
  }
  return new Refusal(answer.status, error, Number(answer.headers.get("Retry-After")) || null);
}
