#!/usr/bin/env bash
# Envoy's preStop hook: returns when Envoy may be stopped without losing a request.
#
# SIGTERM ends Envoy at once, with all it carries. So first, by its admin port: fail the
# health check, which makes Envoy ask its clients to close their connections; go on
# serving while the news of the pod's end spreads (DRAIN_MIN seconds); then wait for the
# requests in flight (DRAIN_MAX seconds at the most). The sidecar lives until Envoy is
# gone: Kubernetes stops native sidecars last.
#
# bash alone does it, as the image has no curl.
set -u

admin() {  # METHOD PATH: prints the answer
  exec 3<>"/dev/tcp/127.0.0.1/${DRAIN_ADMIN_PORT:-9901}" || return
  printf '%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n' "$1" "$2" >&3
  cat <&3
  exec 3>&-
}

idle() {  # whether no request for a model is in flight; so too if Envoy is gone
  local line
  while IFS= read -r line; do
    case $line in
      http.llm.downstream_rq_active:*[1-9]*) return 1 ;;
    esac
  done < <(admin GET '/stats?filter=%5Ehttp%5C.llm%5C.downstream_rq_active$')
  return 0
}

admin POST /healthcheck/fail >/dev/null
sleep "${DRAIN_MIN:-10}"
while ((SECONDS < ${DRAIN_MAX:-300})); do
  idle && exit 0
  sleep 1
done
echo "drain: requests still in flight after ${DRAIN_MAX:-300} s" >&2
