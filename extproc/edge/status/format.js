// Numbers and times as people read them.

export const NONE = "-";

export const count = (value) => (value === null || value === undefined ? NONE : value.toLocaleString("en-US"));

export const number = (value) => (value === null || value === undefined ? NONE : value.toFixed(2));

export function percent(share) {
  return share === null || share === undefined || Number.isNaN(share) ? NONE : `${(100 * share).toFixed(1)} %`;
}

export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value === 0) return "0 s";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} us`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.1 ? 1 : 0)} ms`;
  if (value < 120) return `${value.toFixed(1)} s`;
  if (value < 7200) return `${(value / 60).toFixed(0)} min`;
  return `${(value / 3600).toFixed(0)} h`;
}

export const clock = (milliseconds) => new Date(milliseconds).toLocaleTimeString("en-GB");

export function rate(value) {
  if (value === null) return NONE;
  return value < 10 ? value.toFixed(1) : count(Math.round(value));
}

/** The color of the endpoint at a position: neighbors differ most if steps are golden angles. */
export const hue = (position) => Math.round(position * 137.508) % 360;
