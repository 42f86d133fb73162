// The ring of one model: its arcs, and the way of one request.

import { byId, element, setAttribute, setText, showFacts } from "./dom.js";
import { count, hue } from "./format.js";

const RADIUS = 84;
const STRIP = 400; // the width of the enlarged arcs
const AFTER = 4; // enlarged arcs from the one that was taken
const MOST_ENLARGED = 60;
const UNUSED = new Set(["Random", "RoundRobin", "LeastLoad", "LeastRequest"]);

/** The point at a share of the circle; it begins at the top and goes clockwise. */
function point(share, radius) {
  const angle = 2 * Math.PI * share;
  return `${(radius * Math.sin(angle)).toFixed(2)} ${(-radius * Math.cos(angle)).toFixed(2)}`;
}

function arc(begin, end, radius) {
  if (end - begin >= 0.9999) return `${arc(begin, begin + 0.5, radius)}${arc(begin + 0.5, begin + 0.9999, radius)}`;
  return `M${point(begin, radius)}A${radius} ${radius} 0 ${end - begin > 0.5 ? 1 : 0} 1 ${point(end, radius)}`;
}

/** The share of the circle of a hash in hex. */
const shareOf = (key) => Number.parseInt(key.slice(0, 13), 16) / 2 ** 52;

/** Return a model's ring, or nothing if the sidecar does not respond. */
async function arcsOf(model) {
  try {
    const response = await fetch(`status/ring?model=${encodeURIComponent(model)}`, { cache: "no-store" });
    return response.ok ? await response.json() : null;
  } catch {
    return null;
  }
}

export class Ring {
  constructor(choose) {
    this.choose = choose;
    this.picture = byId("ring-picture");
    this.arcs = element("svg:g", { class: "arcs" });
    this.way = element("svg:g", { class: "way" });
    this.picture.append(this.arcs, this.way);
    this.pinned = null;
    this.drawn = "";
    this.name = ""; // the model whose ring was asked for
    this.asked = ""; // with the version of its ring
    this.data = null;
    byId("ring-follow").addEventListener("click", () => this.pin(null));
  }

  /** Show one request until another is chosen; null follows the last one. */
  pin(decision) {
    this.pinned = decision;
    byId("ring-follow").hidden = !decision;
    if (decision && decision.model !== this.model?.name) this.choose(decision.model);
    else this.draw();
  }

  show(chosen, model, latest) {
    this.model = model;
    this.latest = latest.get(chosen?.name) ?? null;
    const wanted = chosen?.ring_version ? `${chosen.name} ${chosen.ring_version}` : "";
    if (!wanted) {
      this.data = null;
      this.asked = "";
    } else if (wanted !== this.asked) this.load(chosen.name, wanted);
    this.draw();
  }

  async load(name, wanted) {
    this.asked = wanted;
    if (this.name !== name) this.data = null;
    this.name = name;
    const data = await arcsOf(name);
    if (this.asked !== wanted) return; // another ring was asked for since
    if (!data) {
      this.asked = ""; // the next poll asks again
      return;
    }
    this.data = data;
    this.paint();
    this.draw();
  }

  /** Draw the arcs: one path for each endpoint. */
  paint() {
    const { addresses, ends, owners } = this.data;
    const paths = addresses.map(() => []);
    ends.forEach((end, index) => {
      const begin = index ? ends[index - 1] : ends.at(-1) - 1;
      paths[owners[index]].push(arc(begin, end, RADIUS));
    });
    const shapes = addresses.map((address, index) => {
      const path = element("svg:path", { d: paths[index].join("") }, element("svg:title", {}, address));
      path.style.setProperty("--hue", hue(index));
      return path;
    });
    this.arcs.replaceChildren(...shapes);
    this.drawn = "";
  }

  draw() {
    const { data, model } = this;
    if (!model || !data) {
      this.arcs.replaceChildren();
      this.way.replaceChildren();
      byId("ring-strip").setAttribute("hidden", "");
      const why = this.asked ? "Loading" : "The model was removed.";
      setText(byId("ring-about"), model ? why : "No model is configured.");
      showFacts(byId("ring-facts"), []);
      return;
    }
    const decision = this.pinned?.model === model.name ? this.pinned : this.latest;
    const hash = decision?.key ?? null;
    const facts = [
      ["Request", !decision ? "none yet" : this.pinned ? (decision.number ? `number ${count(decision.number)}` : "explained") : "the last one"],
      ["Hash of its prefix", decision ? (hash ?? "none") : null],
      ["Home endpoint", decision?.strategy === "PrefixHash" && hash ? decision.walk?.[0] : null],
      ["Passed over, above the bound", decision?.reason === "bound" ? decision.walk?.slice(0, -1).join(", ") : null],
      ["Went to", decision?.endpoint],
      ["Reason", decision?.reason],
    ];
    const sampled = data.exact ? "" : ` The picture shows ${count(2048)} points of it.`;
    const unused = UNUSED.has(model.strategy) ? ` ${model.strategy} does not use it.` : "";
    const about = `${count(data.nodes)} virtual nodes of ${count(data.addresses.length)} endpoints. An endpoint gets the keys of its arcs, clockwise.${sampled}${unused}`;
    setText(byId("ring-about"), about);
    showFacts(byId("ring-facts"), facts);
    this.drawWay(decision, hash);
  }

  drawWay(decision, hash) {
    const mark = `${decision?.number} ${hash} ${decision?.endpoint}`;
    if (mark === this.drawn) return;
    this.drawn = mark;
    const strip = byId("ring-strip");
    setAttribute(strip, "hidden", hash ? null : "");
    if (!hash) {
      this.way.replaceChildren();
      return;
    }
    const share = shareOf(hash);
    const shapes = [element("svg:path", { class: "key", d: `M0 0L${point(share, RADIUS + 14)}` })];
    const passed = decision.reason === "bound" ? (decision.walk?.slice(0, -1) ?? []) : [];
    for (const address of passed) shapes.push(this.outline(address, share, "passed"));
    shapes.push(this.outline(decision.endpoint, share, "taken"));
    this.way.replaceChildren(...shapes.filter(Boolean));
    strip.replaceChildren(...this.enlarged(share, decision.endpoint, passed));
  }

  /** The arcs from a key to the endpoint that was taken, and some more, from left to right. */
  enlarged(share, endpoint, passed) {
    const { addresses, ends, owners } = this.data;
    const start = Math.max(0, ends.findIndex((end) => end >= share));
    const nodes = [];
    let begin = 0;
    let more = AFTER;
    const marks = new Map([...passed.map((address) => [address, "passed"]), [endpoint, "taken"]]);
    for (let step = 0; step < Math.min(ends.length, MOST_ENLARGED) && more > 0; step++) {
      const index = (start + step) % ends.length;
      const address = addresses[owners[index]];
      const end = (((ends[index] - share) % 1) + 1) % 1;
      nodes.push({ begin, end, owner: owners[index], mark: marks.get(address) });
      marks.delete(address);
      begin = end;
      if (!marks.has(endpoint)) more--;
    }
    const scale = STRIP / begin;
    return nodes.flatMap(({ begin: from, end, owner, mark }) => {
      const place = { x: (from * scale).toFixed(1), width: Math.max(0.5, (end - from) * scale).toFixed(1) };
      const shape = element("svg:rect", { ...place, y: 0, height: 24 }, element("svg:title", {}, addresses[owner]));
      shape.style.setProperty("--hue", hue(owner));
      return mark ? [shape, element("svg:rect", { ...place, class: mark, y: 27, height: 7 })] : [shape];
    });
  }

  /** Outline the first arc of an endpoint after a key. */
  outline(address, share, kind) {
    const { addresses, ends, owners } = this.data;
    const owner = addresses.indexOf(address);
    if (owner < 0) return null;
    let start = ends.findIndex((end) => end >= share);
    if (start < 0) start = 0;
    for (let step = 0; step < ends.length; step++) {
      const index = (start + step) % ends.length;
      if (owners[index] !== owner) continue;
      const begin = index ? ends[index - 1] : ends.at(-1) - 1;
      return element("svg:path", { class: kind, d: arc(begin, Math.max(ends[index], begin + 0.004), RADIUS + 11) });
    }
    return null;
  }
}
