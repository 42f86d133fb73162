// The sidecar's traffic: rates and times of the last seconds.

import { byId, element, setText } from "./dom.js";
import { NONE, count, percent, rate, seconds } from "./format.js";
import { Counters } from "./rates.js";

const sum = (values) => values.reduce((total, value) => total + value, 0);

export class Traffic {
  constructor() {
    this.counters = new Counters();
    this.model = "";
  }

  show(now, state, chosen) {
    if (this.model !== chosen?.name) this.counters = new Counters();
    this.model = chosen?.name;
    const { counts, sum: time } = state.durations;
    const values = { decisions: sum(counts), time };
    counts.forEach((value, index) => (values[`bucket ${index}`] = value));
    for (const { name, routed } of state.models) values[`routed ${name}`] = routed;
    values.routed = values.others = 0;
    for (const outcomes of Object.values(state.requests)) {
      for (const [outcome, number] of Object.entries(outcomes)) values[outcome === "routed" ? "routed" : "others"] += number;
    }
    this.addFirstTokens(values, chosen?.endpoints ?? []);
    this.counters.add(now, values);
    this.showTiles(state, values);
  }

  addFirstTokens(values, endpoints) {
    values.first = values.waited = 0;
    for (const { address, signals } of endpoints) {
      if (typeof signals?.first_token_seconds !== "number" || typeof signals.first_tokens !== "number") continue;
      values[`first ${address}`] = signals.first_tokens;
      values[`waited ${address}`] = signals.first_token_seconds;
      values.first += signals.first_tokens;
      values.waited += signals.first_token_seconds;
    }
  }

  /** The routed requests of a model in a second. */
  requests(model) {
    return this.counters.rate(`routed ${model}`);
  }

  /** The mean time to first token of an endpoint; null if it is not known. */
  firstToken(address) {
    return this.counters.mean(`waited ${address}`, `first ${address}`);
  }

  showTiles(state, values) {
    const { counters } = this;
    const model = state.models.find(({ name }) => name === this.model);
    const prompts = model?.prompts;
    const queues = state.models.map(({ queue }) => queue).filter(Boolean);
    const tiles = [
      ["Requests per second", rate(counters.rate("routed"))],
      ["Routed", count(values.routed)],
      ["Not routed", count(values.others)],
      ["In flight", count(state.inflight)],
      "inflight_fleet" in state && ["In flight, all sidecars", count(state.inflight_fleet)],
      queues.length > 0 && ["Waiting", count(sum(queues.map(({ requests }) => requests)))],
      ["Decision time, mean", seconds(counters.mean("time", "decisions"))],
      ["Decision time, 99 %", this.percentile(state.durations.bounds, 0.99)],
      values.first > 0 && ["Time to first token", seconds(counters.mean("waited", "first"))],
      prompts && ["Predicted cache hits", percent(prompts.predicted / prompts.prompt)],
      prompts?.answered > 0 && ["Actual cache hits", percent(prompts.cached / prompts.answered)],
    ].filter(Boolean);
    const list = byId("tiles");
    while (list.children.length > tiles.length) list.lastElementChild.remove();
    tiles.forEach(([term, value], index) => {
      if (!list.children[index]) list.append(element("div", {}, element("dt"), element("dd")));
      const tile = list.children[index];
      tile.dataset.term = term;
      setText(tile.children[0], term);
      setText(tile.children[1], value);
    });
  }

  /** The bound of the bucket that this share of the last decisions did not exceed. */
  percentile(bounds, share) {
    const all = this.counters.growth("decisions");
    if (!all) return NONE;
    let below = 0;
    for (const [index, bound] of bounds.entries()) {
      below += this.counters.growth(`bucket ${index}`);
      if (below >= share * all) return `≤ ${seconds(bound)}`;
    }
    return `> ${seconds(bounds.at(-1))}`;
  }
}
