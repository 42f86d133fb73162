// The explanation of a request that is pasted into the page.

import { byId, element } from "./dom.js";
import { count, percent } from "./format.js";

const SHOWN = 20;

export class Explainer {
  constructor(pin) {
    this.pin = pin;
    byId("explain-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
  }

  async ask() {
    const target = byId("explain-result");
    const headers = {};
    for (const line of byId("explain-headers").value.split("\n")) {
      const colon = line.indexOf(":");
      if (colon > 0) headers[line.slice(0, colon).trim()] = line.slice(colon + 1).trim();
    }
    const asked = { body: byId("explain-body").value, path: byId("explain-path").value, headers };
    try {
      const response = await fetch("status/explain", {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify(asked),
      });
      if (response.status === 413) throw new Error("The body is too long: the page explains up to 1 MiB.");
      const found = await response.json();
      if (!response.ok) throw new Error(found.problem ?? `status ${response.status}`);
      target.replaceChildren(...this.parts(found));
      if (found.prefix_hash) this.pin(way(found));
    } catch (error) {
      target.replaceChildren(element("p", { class: "bad" }, String(error.message)));
    }
  }

  parts(found) {
    const steps = element("ol", { class: "steps" });
    const step = (title, text) => steps.append(element("li", {}, element("strong", {}, title), ` ${text}`));
    step("Body", `${count(found.shown_bytes)} of ${count(found.body_bytes)} bytes are read.`);
    if (found.error) {
      step(found.error.status < 400 ? "No decision" : "Refused", `${found.error.status} ${found.error.code}: ${found.error.message}`);
      return [steps];
    }
    step("Model", found.model);
    if (found.adapter) step("Adapter", found.adapter);
    if (found.rename) step("Renamed", `The body's model becomes ${found.rename}.`);
    step("Strategy", `${found.strategy}${found.reads_signals ? ", which reads the engines' metrics" : ""}`);
    step("Prefix", found.prefix ? JSON.stringify(found.prefix) : "none");
    if (found.session) step("Session", `from ${found.session}`);
    step("Hash", found.prefix_hash ?? "none");
    if (found.prompt) {
      const { bytes, blocks, system_blocks: system, home_by: by } = found.prompt;
      step("Prompt", `${count(bytes)} bytes in ${count(blocks)} blocks, ${count(system)} of them tools and system prompt; home endpoint by ${by}.`);
    }
    const flow = found.flow_control;
    if (flow) step("Flow control", flow.waits ? `waits for room, with ${flow.requests} others` : "an endpoint has room");
    if (found.bound !== null) step("Bound", `${found.bound.toFixed(2)} requests in flight`);
    step("Candidates", `${count(found.candidates.length)}, in the order of preference:`);
    steps.lastElementChild.append(this.candidates(found.candidates));
    step("Endpoint", `${found.endpoint} (${found.reason})`);
    return [steps];
  }

  candidates(all) {
    const predicts = all.some((one) => one.predicted_hit !== null);
    const titles = ["Endpoint", "In flight", "Hops", "Reason", ...(predicts ? ["Predicted hit"] : [])];
    const head = element("thead", {}, element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title))));
    const rows = all.slice(0, SHOWN).map((one) => {
      const values = [count(one.inflight), count(one.hops), one.reason, ...(predicts ? [percent(one.predicted_hit)] : [])];
      return element("tr", {}, element("th", { scope: "row" }, one.address), ...values.map((value) => element("td", {}, value)));
    });
    const more = all.length > SHOWN ? ` The first ${SHOWN} of ${count(all.length)}.` : "";
    const table = element("table", {}, element("caption", {}, `Candidates.${more}`), head, element("tbody", {}, ...rows));
    return element("div", { class: "scroll", role: "region", "aria-label": "Table of candidates", tabindex: "0" }, table);
  }
}

/** The explained request as a decision that the ring can show. */
function way(found) {
  const hops = found.candidates.find((one) => one.address === found.endpoint)?.hops ?? 0;
  const walk = found.candidates
    .filter((one) => one.hops <= hops)
    .sort((one, other) => one.hops - other.hops)
    .map((one) => one.address);
  return { model: found.model, strategy: found.strategy, key: found.prefix_hash, endpoint: found.endpoint, reason: found.reason, walk };
}
