{{- define "girassol.fullname" -}}
{{- if contains "girassol" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-girassol" (.Release.Name | trunc 40 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "girassol.operator" -}}
{{- include "girassol.fullname" . }}-operator
{{- end -}}

{{- define "girassol.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "girassol.operator" .) -}}
{{- end -}}

{{- define "girassol.selector" -}}
app.kubernetes.io/name: girassol
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "girassol.labels" -}}
{{ include "girassol.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/* image takes (list root image): registry/repository@digest or :tag. */}}
{{- define "girassol.image" -}}
{{- $root := index . 0 -}}{{- $image := index . 1 -}}
{{- $repository := $image.repository -}}
{{- $host := splitList "/" $repository | first -}}
{{- if and $root.Values.images.registry (not (and (contains "/" $repository) (or (contains "." $host) (contains ":" $host) (eq $host "localhost")))) -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" $root.Values.images.registry) $repository -}}
{{- end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository ($image.tag | default $root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* rules of one role document of files/rbac/role.yaml: kind ClusterRole or Role. */}}
{{- define "girassol.generatedRules" -}}
{{- $kind := index . 1 -}}
{{- $rules := list -}}
{{- range regexSplit "(?m)^---\n" ((index . 0).Files.Get "files/rbac/role.yaml") -1 -}}
{{- $document := fromYaml . -}}
{{- if eq (get $document "kind" | default "") $kind -}}
{{- $rules = concat $rules $document.rules -}}
{{- end -}}
{{- end -}}
{{- toYaml (dict "rules" $rules) -}}
{{- end -}}

{{/* Rules for the kinds of capacity.scaleTargets: (list root clusterScoped). */}}
{{- define "girassol.scaleRules" -}}
{{- $rules := list -}}
{{- range (index . 0).Values.capacity.scaleTargets -}}
{{- if eq (.clusterScoped | default false) (index $ 1) -}}
{{- $rules = append $rules (dict "apiGroups" (list .group) "resources" (list .resource) "verbs" (list "get")) -}}
{{- $rules = append $rules (dict "apiGroups" (list .group) "resources" (list (printf "%s/scale" .resource)) "verbs" (list "get" "update")) -}}
{{- end -}}
{{- end -}}
{{- toYaml (dict "rules" $rules) -}}
{{- end -}}
