// Rates and means over the last seconds, from counters that only rise.

const WINDOW = 5000; // milliseconds

export class Counters {
  constructor() {
    this.samples = [];
  }

  /** Add the counters of one poll. A counter that fell means that the sidecar restarted. */
  add(at, values) {
    const last = this.samples.at(-1);
    if (last && Object.entries(last.values).some(([name, value]) => values[name] < value)) this.samples = [];
    this.samples.push({ at, values });
    while (this.samples.length > 2 && this.samples[1].at <= at - WINDOW) this.samples.shift();
  }

  /** The growth in the window; null if it is not known. */
  growth(name) {
    const [first, last] = [this.samples[0], this.samples.at(-1)];
    if (this.samples.length < 2) return null;
    const [before, now] = [first.values[name], last.values[name]];
    return before === undefined || now === undefined ? null : now - before;
  }

  /** The growth in a second. */
  rate(name) {
    const grown = this.growth(name);
    const passed = grown === null ? 0 : this.samples.at(-1).at - this.samples[0].at;
    return passed ? (1000 * grown) / passed : null;
  }

  /** The growth of one counter for each step of another. */
  mean(name, of) {
    const [part, whole] = [this.growth(name), this.growth(of)];
    return whole ? part / whole : null;
  }
}
