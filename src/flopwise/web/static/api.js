// The API: the same questions as the command line, and problems as they are answered.

const ROOT = "/api/v1";
const TOKEN = "flopwise-token";

/** The token of a printed link is kept for this tab, and leaves the address; whether there was one. */
export function keepToken() {
  const found = /^#token=([^&]+)(?:&(.*))?$/s.exec(location.hash);
  if (!found) return false;
  sessionStorage.setItem(TOKEN, decodeURIComponent(found[1]));
  history.replaceState(null, "", location.pathname + location.search + (found[2] ? `#${found[2]}` : ""));
  return true;
}

function headers(more = {}) {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

/** What is answered instead of an answer. */
export class Problem extends Error {
  constructor(details) {
    super(details.detail);
    this.details = details;
    this.infeasible = details.type === "urn:flopwise:problem:infeasible";
  }
}

async function checked(response) {
  if (response.ok) return response;
  let details;
  try {
    details = await response.json();
  } catch {
    details = { title: "no answer", detail: `the server answered ${response.status}`, status: response.status };
  }
  throw new Problem(details);
}

async function sent(path, options) {
  try {
    return await fetch(ROOT + path, options);
  } catch (failure) {
    if (failure.name === "AbortError") throw failure;
    throw new Problem({ title: "no connection", detail: "The server does not answer: is `flopwise web` still running?", status: 0 });
  }
}

/** The answer to a question, options by name and `files` beside them. Throws Problem. */
export async function ask(noun, question, { signal, accept } = {}) {
  const more = { "Content-Type": "application/json", ...(accept ? { Accept: accept } : {}) };
  const response = await checked(await sent(`/${noun}`, { method: "POST", headers: headers(more), body: JSON.stringify(question), signal }));
  return accept === "application/zip" ? response.blob() : response.json();
}

const known = new Map();
/** Facts by query: asked once a page, and again with their ETag by the browser. */
export function facts(noun, query = {}) {
  const path = `/${noun}?${new URLSearchParams(query)}`;
  if (!known.has(path)) {
    const answer = sent(path, { headers: headers() }).then(checked).then((response) => response.json());
    answer.catch(() => known.delete(path));
    known.set(path, answer);
  }
  return known.get(path);
}

/** The declaration of a noun's options: JSON Schema by name. */
export async function options(noun) {
  const described = await facts("openapi.json");
  return described.paths[`${ROOT}/${noun}`].post.requestBody.content["application/json"].schema.properties;
}

/**
 * The answer to a long question, asked as a job: `progress(text, fraction)` is told how it stands, `first(plan)` the plans of a
 * few machines and `ranked(plan)` all plans as soon as they are known; an abort stops it.
 */
export async function job(noun, question, { signal, progress, accept, ...rankings }) {
  const more = { "Content-Type": "application/json", Prefer: "respond-async", ...(accept ? { Accept: accept } : {}) };
  const begun = await checked(await sent(`/${noun}`, { method: "POST", headers: headers(more), body: JSON.stringify(question) }));
  const path = `/jobs/${(await begun.json()).id}`;
  const stop = () => sent(path, { method: "DELETE", headers: headers(), keepalive: true }).catch(() => {});
  if (signal.aborted) {
    stop();
    throw signal.reason;
  }
  signal.addEventListener("abort", stop);
  try {
    const stream = await checked(await sent(`${path}/events`, { headers: headers(), signal }));
    const reader = stream.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { value, done } = await reader.read();
      if (done) break;
      rest += value;
      const events = rest.split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const data = /^data: (.*)$/m.exec(event);
        const name = /^event: (first|ranked)\n/.exec(event)?.[1];
        if (data && name) {
          rankings[name]?.(JSON.parse(data[1]));
          continue;
        }
        const state = data && JSON.parse(data[1]).progress;
        const fraction = state?.total ? Math.min(state.done / state.total, 1) : null;
        if (state) progress(`${state.what} ${fraction === null ? "" : `${Math.round(100 * fraction)} %`} ${state.note}`.trim(), fraction);
      }
    }
    const result = await checked(await sent(`${path}/result`, { headers: headers(), signal }));
    return await (accept === "application/zip" ? result.blob() : result.json());
  } finally {
    signal.removeEventListener("abort", stop);
  }
}
