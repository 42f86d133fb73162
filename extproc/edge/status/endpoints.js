// The table of one model's endpoints.

import { Table, byId, setAttribute, setText } from "./dom.js";
import { NONE, count, hue, percent, seconds } from "./format.js";

const ROWS = 50;

const ORDERS = {
  name: () => 0,
  inflight: (one) => -one.inflight,
  waiting: (one) => -(one.signals?.waiting ?? -1),
  kv: (one) => -(one.signals?.kv_usage ?? -1),
};

export class Endpoints {
  constructor() {
    this.table = new Table("endpoints");
    this.chosen = null;
    this.first = 0;
    this.filter = byId("endpoints-filter");
    this.sort = byId("endpoints-sort");
    const again = () => {
      this.first = 0;
      this.draw();
    };
    this.filter.addEventListener("input", again);
    this.sort.addEventListener("change", again);
    byId("endpoints-back").addEventListener("click", () => this.turn(-ROWS));
    byId("endpoints-next").addEventListener("click", () => this.turn(ROWS));
  }

  show(chosen, traffic) {
    if (chosen?.name !== this.chosen?.name) this.first = 0;
    this.chosen = chosen;
    this.traffic = traffic;
    this.draw();
  }

  turn(step) {
    this.first += step;
    this.draw();
  }

  draw() {
    if (!this.traffic) return;
    const all = this.chosen?.endpoints ?? [];
    const text = this.filter.value.trim().toLowerCase();
    const order = ORDERS[this.sort.value];
    const found = all
      .filter((one) => !text || `${one.name} ${one.address} ${state(one)}`.toLowerCase().includes(text))
      .sort((one, other) => order(one) - order(other));
    if (this.first >= found.length) this.first = Math.max(0, Math.floor((found.length - 1) / ROWS) * ROWS);
    const rows = found.slice(this.first, this.first + ROWS);
    const places = new Map(all.map(({ address }, place) => [address, place]));
    const range = rows.length ? `${this.first + 1} to ${this.first + rows.length} of ${count(found.length)}` : "none";
    setText(byId("endpoints-shown"), range);
    byId("endpoints-back").disabled = this.first === 0;
    byId("endpoints-next").disabled = this.first + ROWS >= found.length;
    setText(byId("endpoints-caption"), caption(this.chosen));
    this.table.show(this.columns(all), rows, (line, { address, state: readiness }) => {
      const color = String(hue(places.get(address)));
      if (line.style.getPropertyValue("--hue") !== color) line.style.setProperty("--hue", color);
      setAttribute(line, "data-key", address);
      setAttribute(line, "data-state", readiness);
    });
  }

  columns(all) {
    const has = (wanted) => all.some(wanted);
    const { bound } = this.chosen ?? {};
    const told = (key) => has((one) => typeof one.signals?.[key] === "number");
    return [
      { title: "Endpoint", of: ({ name, address }) => (name === address ? address : `${name} (${address})`) },
      { title: "State", of: state },
      { title: "In flight", number: true, about: "Requests of this sidecar", of: (one) => count(one.inflight) },
      has((one) => "inflight_fleet" in one) && {
        title: "All sidecars",
        number: true,
        about: "Requests in flight of all sidecars",
        of: (one) => count(one.inflight_fleet),
      },
      bound && { title: "Bound", number: true, about: "Requests in flight above which requests spill", of: () => count(bound.requests) },
      has((one) => "limit" in one) && { title: "Limit", number: true, of: (one) => count(one.limit) },
      told("running") && { title: "Running", number: true, of: ({ signals }) => count(signals?.running) },
      told("waiting") && { title: "Waiting", number: true, of: ({ signals }) => count(signals?.waiting) },
      told("kv_usage") && { title: "KV cache", number: true, about: "Share in use", of: ({ signals }) => percent(signals?.kv_usage) },
      told("age_seconds") && { title: "Age", number: true, about: "Age of the engine's numbers", of: ({ signals }) => seconds(signals?.age_seconds) },
      told("first_token_seconds") && { title: "TTFT", number: true, about: "Mean time to first token of the last seconds", of: ({ address }) => seconds(this.traffic.firstToken(address)) },
      has((one) => "predicted" in one) && { title: "Predicted hits", number: true, about: "Of the last 200 decisions", of: ({ predicted }) => percent(predicted) },
      told("prompt_tokens") && { title: "Actual hits", number: true, about: "Since the engine started, by its own metrics", of: ({ signals }) => actual(signals) },
      has((one) => "slow_start" in one || "slowness" in one) && { title: "Weight", of: weight },
      has((one) => one.adapters.length) && { title: "Adapters", of: ({ adapters }) => adapters.join(", ") || NONE },
    ].filter(Boolean);
  }
}

function caption(chosen) {
  const bound = chosen?.bound ? ` A prefix's home endpoint gets its requests up to the bound of ${chosen.bound.exact.toFixed(2)} requests.` : "";
  return `Each endpoint's requests, and what its engine reports.${bound}`;
}

function state(one) {
  if (!one.ejection) return one.state;
  return one.ejection.on_trial ? "ejected, on trial" : `ejected, ${seconds(one.ejection.left)} left`;
}

const actual = (signals) => (signals?.prompt_tokens ? percent((signals.cached_tokens ?? 0) / signals.prompt_tokens) : NONE);

function weight({ slow_start: share, slowness }) {
  const parts = [];
  if (share !== undefined) parts.push(`slow start ${percent(share)}`);
  if (slowness !== undefined) parts.push(`${slowness} times the usual time`);
  return parts.join(", ") || "1";
}
