// The sidecar's configuration, and its peers.

import { Table, byId, showFacts } from "./dom.js";
import { count, seconds } from "./format.js";

const peers = new Table("peers");

export function showSidecar({ version, configuration, shared_state: shared }) {
  showFacts(byId("configuration"), [
    ["Version", version],
    ["Models document", configuration.source ?? "none yet"],
    ["Last reload", configuration.last_reload_successful ? "in force" : "refused; the last valid document stays in force"],
    ["Last error", configuration.last_error || null],
    ["Age", configuration.source ? seconds(configuration.age_seconds) : null],
    ["Shared state", shared ? null : "off"],
  ]);
  byId("peers").hidden = !shared;
  if (!shared) return;
  showFacts(byId("shared-state"), [
    ["Connected", shared.connected ? "yes" : "no"],
    ["This sidecar", shared.id],
    ["Lag", seconds(shared.lag_seconds)],
    ["Peers", count(shared.peers.length)],
  ]);
  const columns = [
    { title: "Peer", of: ({ id }) => id },
    { title: "In flight", number: true, of: ({ inflight }) => count(inflight) },
    { title: "Last report", number: true, of: ({ age_seconds: age }) => seconds(age) },
  ];
  peers.show(columns, shared.peers);
}
