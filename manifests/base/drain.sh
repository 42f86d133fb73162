#!/usr/bin/env bash
# Envoy's preStop hook: returns when Envoy can be stopped without losing a request.
#
# SIGTERM ends Envoy at once, with all its requests. So this script first uses the admin port:
# 1. Fail the health check. Envoy then asks its clients to close their connections.
# 2. Serve for DRAIN_MIN seconds while other components learn that the pod ends.
# 3. Wait for the requests in flight, at most DRAIN_MAX seconds.
# Kubernetes stops native sidecars last, so the sidecar outlives Envoy.
#
# The script needs only bash, because the image has no curl.
set -u

admin() {  # METHOD PATH: prints the response
  exec 3<>"/dev/tcp/127.0.0.1/${DRAIN_ADMIN_PORT:-9901}" || return
  printf '%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n' "$1" "$2" >&3
  cat <&3
  exec 3>&-
}

idle() {  # true if no request for a model is in flight, or if Envoy has stopped
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
