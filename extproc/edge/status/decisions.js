// The table of the last decisions.

import { Table, byId, element, setAttribute, setText } from "./dom.js";
import { NONE, clock, count, percent, seconds } from "./format.js";

const KEPT = 200;

export class Decisions {
  constructor(pin) {
    this.table = new Table("decisions");
    this.pin = pin;
    this.all = []; // the latest first
    this.shown = [];
    this.last = 0;
    this.latest = new Map(); // the last decision of each model
    this.reasons = new Set();
    this.text = byId("decisions-filter");
    this.reason = byId("decisions-reason");
    this.pause = byId("decisions-pause");
    this.text.addEventListener("input", () => this.draw());
    this.reason.addEventListener("change", () => this.draw());
    this.pause.addEventListener("change", () => this.take());
  }

  show(now, { total, new: found }) {
    if (total < this.last) {
      // The sidecar restarted: its numbers begin again.
      this.all = [];
      this.last = 0;
    }
    for (const decision of found) {
      if (decision.number <= this.last) continue;
      decision.at = now - 1000 * decision.age_seconds;
      decision.why = decision.reason ?? decision.outcome;
      this.all.unshift(decision);
      this.last = decision.number;
      if (decision.endpoint) this.latest.set(decision.model, decision);
      this.addReason(decision.why);
    }
    this.all.length = Math.min(this.all.length, KEPT);
    if (found.length && !this.pause.checked) this.take();
    else if (!this.table.titles) this.draw();
  }

  take() {
    if (!this.pause.checked) this.shown = [...this.all];
    this.draw();
  }

  addReason(reason) {
    if (this.reasons.has(reason)) return;
    this.reasons.add(reason);
    const options = [...this.reasons].sort().map((value) => element("option", { value }, value));
    const chosen = this.reason.value;
    this.reason.replaceChildren(element("option", { value: "" }, "all"), ...options);
    this.reason.value = chosen;
  }

  draw() {
    const text = this.text.value.trim().toLowerCase();
    const reason = this.reason.value;
    const rows = this.shown.filter((one) => (!reason || one.why === reason) && (!text || searched(one).includes(text)));
    setText(byId("decisions-shown"), `${rows.length} of ${this.shown.length}`);
    this.table.show(this.columns(), rows, (line, one) => {
      setAttribute(line, "data-key", one.number);
      setAttribute(line, "data-outcome", one.outcome);
      line.decision = one;
    });
  }

  columns() {
    const predicts = this.all.some((one) => typeof one.predicted === "number");
    const adapts = this.all.some((one) => one.adapter);
    const waits = this.all.some((one) => typeof one.waited === "number");
    return [
      { title: "Number", number: true, of: (one) => count(one.number) },
      { title: "Time", of: (one) => clock(one.at) },
      { title: "Model", of: (one) => one.model },
      adapts && { title: "Adapter", of: (one) => one.adapter || NONE },
      { title: "Endpoint", of: (one) => one.endpoint ?? NONE },
      { title: "Reason", of: (one) => one.why },
      { title: "Hash", of: (one, cell) => this.hash(one, cell) },
      { title: "Hops", number: true, of: (one) => count(one.hops) },
      { title: "In flight before", number: true, of: (one) => count(one.inflight) },
      { title: "Candidates", number: true, of: (one) => count(one.candidates) },
      predicts && { title: "Predicted hit", number: true, of: (one) => percent(one.predicted) },
      waits && { title: "Waited", number: true, of: (one) => seconds(one.waited) },
      { title: "Decision, us", number: true, of: (one) => one.microseconds.toFixed(0) },
    ].filter(Boolean);
  }

  hash(one, cell) {
    if (!one.key) return NONE;
    let button = cell.firstElementChild;
    if (!button) {
      button = element("button", { type: "button", class: "link hash", title: "Show on the ring" });
      button.addEventListener("click", () => this.pin(cell.parentElement.decision));
      cell.replaceChildren(button);
    }
    setText(button, one.key);
    return undefined;
  }
}

const searched = (one) => `${one.model} ${one.adapter ?? ""} ${one.endpoint ?? ""} ${one.why} ${one.key ?? ""} ${one.strategy ?? ""}`.toLowerCase();
