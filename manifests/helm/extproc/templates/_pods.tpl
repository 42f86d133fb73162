{{/*
Each template here changes the object that it gets, and prints nothing.
*/}}

{{/*
The pods of a Deployment: the sidecar's, or those of the Valkey server.
*/}}
{{- define "extproc.applyToDeployment" -}}
{{- $root := .root -}}
{{- $pod := .object.spec.template.spec -}}
{{- with $root.Values.imagePullSecrets -}}{{- $_ := set $pod "imagePullSecrets" . -}}{{- end -}}
{{- /* The patch for an Envoy that you have leaves the choice of nodes to you. */ -}}
{{- if hasKey .object "kind" -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" -}}
{{- with index $root.Values $key -}}{{- $_ := set $pod $key . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- range concat ($pod.initContainers | default list) $pod.containers -}}
{{- if eq .name "extproc" -}}
{{- include "extproc.applyToSidecar" (dict "root" $root "object" $.object "pod" $pod "container" .) -}}
{{- else if eq .name "envoy" -}}
{{- include "extproc.applyToEnvoy" (dict "root" $root "pod" $pod "container" .) -}}
{{- else -}}
{{- include "extproc.applyImage" (dict "root" $root "container" . "image" $root.Values.sharedState.valkey.image) -}}
{{- end -}}
{{- end -}}
{{- include "extproc.applySecrets" (dict "root" $root "pod" $pod) -}}
{{- if hasKey $pod "priorityClassName" -}}{{- $_ := set $pod "priorityClassName" $root.Values.priority.className -}}{{- end -}}
{{- end -}}

{{- define "extproc.applyImage" -}}
{{- $_ := set .container "image" (include "extproc.image" .) -}}
{{- $_ := set .container "imagePullPolicy" .image.pullPolicy -}}
{{- end -}}

{{- define "extproc.applyToSidecar" -}}
{{- $values := .root.Values -}}
{{- $container := .container -}}
{{- include "extproc.applyImage" (dict "root" .root "container" $container "image" $values.image) -}}
{{- if hasKey .object.spec "replicas" -}}{{- $_ := set .object.spec "replicas" $values.replicas -}}{{- end -}}
{{- with $values.podAnnotations -}}{{- $_ := set $.object.spec.template.metadata "annotations" . -}}{{- end -}}
{{- with $values.resources -}}{{- $_ := set $container "resources" . -}}{{- end -}}
{{- $changes := append (include "extproc.parts" .root | fromYamlArray) (dict "container" (dict "args" $values.extraArgs "env" $values.extraEnv) "replicas" true "pod" dict "volumes" list "first" false) -}}
{{- range $change := $changes -}}
{{- if not $change.replicas -}}{{- $_ := unset $.object.spec "replicas" -}}{{- end -}}
{{- range $key, $added := $change.container -}}
{{- $present := index $container $key | default list -}}
{{- if $added -}}{{- $_ := set $container $key (ternary (concat $added $present) (concat $present $added) $change.first) -}}{{- end -}}
{{- end -}}
{{- range $key, $value := $change.pod -}}{{- $_ := set $.pod $key $value -}}{{- end -}}
{{- $present := $.pod.volumes -}}
{{- $_ := set $.pod "volumes" (ternary (concat $change.volumes $present) (concat $present $change.volumes) $change.first) -}}
{{- end -}}
{{- range $container.envFrom -}}
{{- $_ := set .configMapRef "name" (include "extproc.sharedStateName" (dict "root" $.root "name" .configMapRef.name)) -}}
{{- end -}}
{{- end -}}

{{- define "extproc.applyToEnvoy" -}}
{{- if hasKey .container "image" -}}
{{- include "extproc.applyImage" (dict "root" .root "container" .container "image" .root.Values.envoy.image) -}}
{{- with .root.Values.envoy.resources -}}{{- $_ := set $.container "resources" . -}}{{- end -}}
{{- range .pod.volumes -}}
{{- with .configMap -}}{{- $_ := set . "name" (include "extproc.envoyConfigName" (dict "root" $.root "name" .name)) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "extproc.applySecrets" -}}
{{- $names := dict "extproc-tls" .root.Values.tls.secretName "extproc-shared-state" .root.Values.sharedState.secretName -}}
{{- range .pod.volumes -}}
{{- with .secret -}}{{- $_ := set . "secretName" (index $names .secretName) -}}{{- end -}}
{{- end -}}
{{- end -}}
