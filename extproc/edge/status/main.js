// Asks for the state once a second while the page is visible, and shows it.

import { byId, setText } from "./dom.js";
import { Decisions } from "./decisions.js";
import { Endpoints } from "./endpoints.js";
import { Explainer } from "./explain.js";
import { clock } from "./format.js";
import { Models } from "./models.js";
import { showQueues } from "./queues.js";
import { Ring } from "./ring.js";
import { showSidecar } from "./sidecar.js";
import { Traffic } from "./traffic.js";

const EVERY = 1000; // milliseconds
const PATIENCE = 5000; // milliseconds until a request counts as lost

const traffic = new Traffic();
const endpoints = new Endpoints();
const ring = new Ring(choose);
const models = new Models(choose);
const decisions = new Decisions((decision) => ring.pin(decision));
new Explainer((decision) => ring.pin(decision));

let wanted = new URLSearchParams(location.search).get("model") ?? "";
let timer = 0;
let asking = false;
let seenAt = 0; // when the sidecar last responded

/** Show this model's endpoints and ring. */
function choose(model) {
  if (model === wanted) return;
  wanted = model;
  history.replaceState(null, "", `?model=${encodeURIComponent(model)}`);
  poll();
}

async function poll() {
  clearTimeout(timer);
  if (document.hidden || asking) return;
  asking = true;
  const asked = wanted;
  try {
    const state = await ask(asked);
    if (state) show(state);
  } finally {
    asking = false;
    timer = setTimeout(poll, asked === wanted ? EVERY : 0);
  }
}

/** Return the state, or nothing if the sidecar does not respond. */
async function ask(model) {
  const query = new URLSearchParams({ model, after: decisions.last });
  try {
    const response = await fetch(`status/state?${query}`, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
    if (response.ok) return await response.json();
  } catch (error) {
    // The network or the timeout. An error of this page is not caught here.
  }
  report(seenAt ? `No connection to the sidecar since ${clock(seenAt)}` : "No connection to the sidecar", "bad");
  return null;
}

function show(state) {
  const now = (seenAt = Date.now());
  const chosen = state.chosen;
  const model = state.models.find(({ name }) => name === chosen?.name);
  health(state);
  for (const title of document.querySelectorAll(".chosen")) setText(title, chosen?.name ?? "no model");
  traffic.show(now, state, chosen);
  models.show(state, chosen?.name, traffic);
  showQueues(state.models);
  endpoints.show(chosen, traffic);
  decisions.show(now, state.decisions);
  ring.show(chosen, model, decisions.latest);
  showSidecar(state);
  document.body.dataset.polls = Number(document.body.dataset.polls ?? 0) + 1;
}

function health(state) {
  if (state.not_ready) report(`Not ready: ${state.not_ready}`, "bad");
  else if (!state.configuration.last_reload_successful) report("Ready; the last models document was refused", "warn");
  else report("Ready", "good");
}

function report(text, level) {
  const target = byId("health");
  setText(target, text);
  target.className = level;
}

document.addEventListener("visibilitychange", poll);
poll();
