{{/*
Refuses combinations of values that no kustomization has.
*/}}
{{- define "extproc.check" -}}
{{- if and .Values.tls.enabled (not (has .Values.gateway (list "standalone" "inference-pool"))) -}}
{{- fail (printf "tls.enabled is for gateway: standalone and inference-pool, not for %s." .Values.gateway) -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (eq .Values.gateway "existing-envoy") -}}
{{- fail "autoscaling.enabled is not for gateway: existing-envoy, whose Deployment is yours." -}}
{{- end -}}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) -}}
{{- fail "autoscaling.minReplicas is larger than autoscaling.maxReplicas." -}}
{{- end -}}
{{- $pool := hasPrefix "inference-pool" .Values.gateway -}}
{{- range .Values.models -}}
{{- if and $pool (not .inferencePool) -}}
{{- fail (printf "models: %s needs inferencePool: with gateway: %s, which has no permission for Services." .name $.Values.gateway) -}}
{{- end -}}
{{- if and (not $pool) .inferencePool -}}
{{- fail (printf "models: %s has inferencePool:, for which gateway: %s has no permission. Set gateway: inference-pool." .name $.Values.gateway) -}}
{{- end -}}
{{- with .inferencePool -}}
{{- if and .namespace (ne .namespace $.Release.Namespace) -}}
{{- fail (printf "models: an InferencePool in the namespace %s needs a release there." .namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
