{{/*
Applies the values to an object. It changes the object, and prints nothing.
*/}}
{{- define "extproc.apply" -}}
{{- $values := .root.Values -}}
{{- $object := .object -}}
{{- $name := $object.metadata.name -}}
{{- $labels := dict "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version) "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- $_ := set $object.metadata "labels" (merge $labels ($object.metadata.labels | default dict)) -}}
{{- if eq $object.kind "Deployment" -}}
{{- include "extproc.applyToDeployment" . -}}
{{- else if eq $object.kind "ConfigMap" -}}
{{- include "extproc.applyToConfigMap" . -}}
{{- else if eq $object.kind "NetworkPolicy" -}}
{{- include "extproc.applyToNetworkPolicy" . -}}
{{- else if and (eq $object.kind "Service") (eq $name "extproc-gateway") -}}
{{- if ne $values.service.type "ClusterIP" -}}{{- $_ := set $object.spec "type" $values.service.type -}}{{- end -}}
{{- with $values.service.annotations -}}{{- $_ := set $object.metadata "annotations" . -}}{{- end -}}
{{- else if eq $object.kind "Gateway" -}}
{{- with $values.gatewayClassName -}}{{- $_ := set $object.spec "gatewayClassName" . -}}{{- end -}}
{{- else if and (eq $object.kind "HTTPRoute") (eq $values.gateway "inference-pool") -}}
{{- range $object.spec.parentRefs -}}{{- $_ := set . "name" $values.gatewayName -}}{{- end -}}
{{- else if eq $object.kind "HorizontalPodAutoscaler" -}}
{{- include "extproc.applyToAutoscaler" . -}}
{{- else if eq $object.kind "PriorityClass" -}}
{{- $_ := set $object.metadata "name" $values.priority.className -}}
{{- else if has $object.kind (list "PodMonitor" "PrometheusRule") -}}
{{- $_ := set $object.metadata "labels" (merge (deepCopy $values.monitoring.labels) $object.metadata.labels) -}}
{{- end -}}
{{- end -}}

{{- define "extproc.applyToConfigMap" -}}
{{- $values := .root.Values -}}
{{- $data := .object.data -}}
{{- $metadata := .object.metadata -}}
{{- if eq $metadata.name "extproc-models" -}}
{{- with $values.models -}}
{{- $models := deepCopy . -}}
{{- range $models -}}
{{- range list .service .inferencePool | compact -}}
{{- if not .namespace -}}{{- $_ := set . "namespace" $.root.Release.Namespace -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $_ := set $data "models.yaml" (toYaml (dict "models" $models)) -}}
{{- end -}}
{{- else if hasPrefix "extproc-envoy-" $metadata.name -}}
{{- $_ := set $metadata "name" (include "extproc.envoyConfigName" (dict "root" .root "name" $metadata.name)) -}}
{{- with $values.envoy.config -}}{{- $_ := set $data "envoy.yaml" . -}}{{- end -}}
{{- else if hasPrefix "extproc-shared-state-" $metadata.name -}}
{{- $_ := set $metadata "name" (include "extproc.sharedStateName" (dict "root" .root "name" $metadata.name)) -}}
{{- with $values.sharedState.url -}}{{- $_ := set $data "EXTPROC_SHARED_STATE" . -}}{{- end -}}
{{- range $key, $value := $values.sharedState.settings -}}{{- $_ := set $data $key ($value | toString) -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/*
The sidecar's own policies get the rules of the parts and of the values.
*/}}
{{- define "extproc.applyToNetworkPolicy" -}}
{{- $values := .root.Values.networkPolicy -}}
{{- $spec := .object.spec -}}
{{- if has .object.metadata.name (list "extproc" "extproc-gateway") -}}
{{- range $rule := $spec.egress -}}
{{- if eq (dig "ipBlock" "cidr" "" (first $rule.to)) "0.0.0.0/0" -}}
{{- $peers := list -}}
{{- range $values.apiServer -}}{{- $peers = append $peers (dict "ipBlock" (dict "cidr" .)) -}}{{- end -}}
{{- $_ := set $rule "to" $peers -}}
{{- end -}}
{{- end -}}
{{- range include "extproc.parts" .root | fromYamlArray -}}
{{- $_ := set $spec "egress" (concat $spec.egress .egress) -}}
{{- end -}}
{{- $_ := set $spec "egress" (concat $spec.egress $values.egress) -}}
{{- range $rule := $spec.ingress -}}
{{- range $rule.from -}}
{{- if eq (dig "namespaceSelector" "matchLabels" "kubernetes.io/metadata.name" "" .) "monitoring" -}}
{{- $_ := set .namespaceSelector.matchLabels "kubernetes.io/metadata.name" $values.prometheusNamespace -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "extproc.applyToAutoscaler" -}}
{{- $values := .root.Values.autoscaling -}}
{{- $spec := .object.spec -}}
{{- $_ := set $spec "minReplicas" $values.minReplicas -}}
{{- $_ := set $spec "maxReplicas" $values.maxReplicas -}}
{{- $metrics := list -}}
{{- range $metric := $spec.metrics -}}
{{- if eq .type "Pods" -}}{{- $_ := set .pods.target "averageValue" (toString $values.requestsPerSecond) -}}{{- end -}}
{{- if or (ne .type "Pods") $values.requestsPerSecond -}}{{- $metrics = append $metrics . -}}{{- end -}}
{{- end -}}
{{- $_ := set $spec "metrics" $metrics -}}
{{- end -}}
