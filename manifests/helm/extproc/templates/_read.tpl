{{/*
The files were built from the kustomizations by `make chart`. They have placeholders for names.
*/}}
{{- define "extproc.read" -}}
{{- $text := .root.Files.Get (printf "files/%s.yaml" .name) | required (printf "the chart has no files/%s.yaml" .name) -}}
{{- range $placeholder, $namespace := dict "RELEASE-NAMESPACE" .root.Release.Namespace "MODELS-NAMESPACE" (.modelsNamespace | default "") -}}
{{- /* toYaml quotes a name such as 123, which YAML would read as a number. */ -}}
{{- range $end := list "\n" "," -}}
{{- $text = $text | replace (printf ": %s%s" $placeholder $end) (printf ": %s%s" (toYaml $namespace) $end) -}}
{{- end -}}
{{- $text = $text | replace $placeholder $namespace -}}
{{- end -}}
{{- $text | replace "MODEL-SERVER" .root.Values.modelServer.name -}}
{{- end -}}

{{/*
The parts that change the sidecar's pod, and their objects.
*/}}
{{- define "extproc.parts" -}}
{{- $parts := list -}}
{{- if .Values.tls.enabled -}}{{- $parts = append $parts "picker-tls" -}}{{- end -}}
{{- if .Values.autoscaling.enabled -}}{{- $parts = append $parts (ternary "gateway-autoscaling" "picker-autoscaling" (eq .Values.gateway "bundled")) -}}{{- end -}}
{{- if .Values.priority.enabled -}}{{- $parts = append $parts "priority" -}}{{- end -}}
{{- if .Values.sharedState.enabled -}}
{{- $parts = append $parts "shared-state" -}}
{{- if not .Values.sharedState.url -}}{{- $parts = append $parts "valkey" -}}{{- end -}}
{{- end -}}
{{- $read := list -}}
{{- range $parts -}}
{{- $read = append $read (include "extproc.read" (dict "root" $ "name" .) | fromYaml) -}}
{{- end -}}
{{- toYaml $read -}}
{{- end -}}

{{/*
The other namespaces that the models document names.
*/}}
{{- define "extproc.modelsNamespaces" -}}
{{- $found := list -}}
{{- range .Values.models -}}
{{- with .service -}}
{{- if and .namespace (ne .namespace $.Release.Namespace) -}}{{- $found = append $found .namespace -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml ($found | uniq) -}}
{{- end -}}

{{/*
All objects, before values are applied to them.
*/}}
{{- define "extproc.objects" -}}
{{- $objects := include "extproc.read" (dict "root" . "name" .Values.gateway) | fromYamlArray -}}
{{- range include "extproc.parts" . | fromYamlArray -}}
{{- $objects = concat $objects .objects -}}
{{- end -}}
{{- range include "extproc.modelsNamespaces" . | fromYamlArray -}}
{{- $objects = concat $objects (include "extproc.read" (dict "root" $ "name" "further-namespace" "modelsNamespace" .) | fromYamlArray) -}}
{{- end -}}
{{- if .Values.monitoring.enabled -}}
{{- $objects = concat $objects (include "extproc.read" (dict "root" . "name" "monitoring") | fromYamlArray) -}}
{{- end -}}
{{- toYaml $objects -}}
{{- end -}}

{{/*
The text of an image.
*/}}
{{- define "extproc.image" -}}
{{- .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ with .image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{/*
The name of the ConfigMap with Envoy's configuration. Envoy reads it once, so the name has a hash
of changes: new content replaces the pods.
*/}}
{{- define "extproc.envoyConfigName" -}}
{{- $changes := list .root.Values.envoy.config .root.Values.modelServer.name -}}
{{- if eq (toJson $changes) (toJson (list "" "vllm-llama")) -}}
{{- .name -}}
{{- else -}}
extproc-envoy-{{ toJson $changes | sha256sum | trunc 10 }}
{{- end -}}
{{- end -}}

{{/*
The same for the settings of the shared state.
*/}}
{{- define "extproc.sharedStateName" -}}
{{- $changes := list .root.Values.sharedState.url .root.Values.sharedState.settings -}}
{{- if eq (toJson $changes) (toJson (list "" dict)) -}}
{{- .name -}}
{{- else -}}
extproc-shared-state-{{ toJson $changes | sha256sum | trunc 10 }}
{{- end -}}
{{- end -}}
