// The queues of models with flow control: a row for each priority class.

import { Table, byId } from "./dom.js";
import { NONE, count, seconds } from "./format.js";

const COLUMNS = [
  { title: "Model", of: ({ model }) => model },
  { title: "Class", of: ({ name }) => name },
  { title: "Priority", number: true, of: ({ priority }) => count(priority) },
  { title: "Waiting", number: true, of: ({ requests }) => count(requests) },
  { title: "Tenants", number: true, of: ({ tenants }) => count(tenants) },
  { title: "Longest wait", number: true, of: ({ oldest_seconds: wait }) => seconds(wait) },
];

const table = new Table("queues");

export function showQueues(models) {
  const rows = models.filter(({ queue }) => queue).flatMap(classes);
  byId("queues").hidden = byId("queues-link").hidden = !rows.length;
  table.show(COLUMNS, rows);
}

/** The classes of a model, the highest priority first. It has none before its first request. */
function classes({ name: model, queue }) {
  const found = Object.entries(queue.classes).map(([name, one]) => ({ model, name, ...one }));
  if (!found.length) return [{ model, name: NONE, requests: 0 }];
  return found.sort((one, other) => other.priority - one.priority);
}
