// The table of models.

import { Table, element, setAttribute, setText } from "./dom.js";
import { NONE, count, number, percent, rate, seconds } from "./format.js";

const hits = (part, whole) => (whole ? percent(part / whole) : NONE);

export class Models {
  constructor(choose) {
    this.table = new Table("models");
    this.choose = choose;
  }

  show({ models, requests }, chosen, traffic) {
    const has = (wanted) => models.some(wanted);
    const refused = ({ name }) => refusals(requests[name]);
    const columns = [
      { title: "Model", of: ({ name }, cell) => this.button(cell, name, name === chosen) },
      { title: "Strategy", of: ({ strategy }) => strategy ?? "removed" },
      { title: "Requests/s", number: true, of: ({ name }) => rate(traffic.requests(name)) },
      { title: "Routed", number: true, of: ({ routed }) => count(routed) },
      { title: "In flight", number: true, of: ({ inflight }) => count(inflight) },
      has((one) => "inflight_fleet" in one) && {
        title: "All sidecars",
        number: true,
        about: "Requests in flight of all sidecars",
        of: ({ inflight_fleet: fleet }) => count(fleet),
      },
      has((one) => one.queue) && { title: "Waiting", number: true, of: ({ queue }) => count(queue?.requests) },
      has((one) => one.queue) && {
        title: "Saturation",
        number: true,
        about: "Requests in flight and waiting, over the limits of all endpoints",
        of: ({ queue }) => number(queue?.saturation),
      },
      has((one) => refused(one) !== NONE) && { title: "Refused", about: "Since the start", of: refused },
      { title: "Ready", number: true, of: ({ states }) => count(states.ready ?? 0) },
      { title: "Ejected", number: true, of: ({ states }) => count(states.ejected ?? 0) },
      { title: "Draining", number: true, of: ({ states }) => count(states.draining ?? 0) },
      has((one) => one.prompts) && {
        title: "Predicted hits",
        number: true,
        about: "Prompt tokens that were predicted to be cached, since the start",
        of: ({ prompts }) => hits(prompts?.predicted, prompts?.prompt),
      },
      has((one) => one.prompts?.answered) && {
        title: "Actual hits",
        number: true,
        about: "Prompt tokens that responses report as cached, since the start",
        of: ({ prompts }) => hits(prompts?.cached, prompts?.answered),
      },
      { title: "Endpoints from", of: ({ source }) => source ?? "a list" },
      {
        title: "Discovery age",
        number: true,
        about: "Time since the endpoints were last known to be current",
        of: ({ source, discovery_age_seconds: age }) => (source ? seconds(age) : NONE),
      },
    ].filter(Boolean);
    this.table.show(columns, models, (line, { name }) => setAttribute(line, "data-key", name));
  }

  button(cell, name, chosen) {
    let button = cell.firstElementChild;
    if (!button) {
      button = element("button", { type: "button", class: "link" });
      button.addEventListener("click", () => this.choose(button.textContent));
      cell.append(button);
    }
    setText(button, name);
    setAttribute(button, "aria-pressed", chosen ? "true" : "false");
  }
}

/** The refusals of a model by code. */
function refusals(outcomes = {}) {
  const refused = Object.entries(outcomes).filter(([outcome]) => outcome !== "routed");
  return refused.map(([code, times]) => `${count(times)} ${code}`).join(", ") || NONE;
}
