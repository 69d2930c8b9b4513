{{- define "siteagent.fullname" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "siteagent.selector" -}}
app.kubernetes.io/name: girassol-agent
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "siteagent.labels" -}}
{{ include "siteagent.selector" . }}
app.kubernetes.io/component: agent
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
girassol.dev/federation: {{ .Values.federation | quote }}
girassol.dev/site: {{ .Values.site | quote }}
{{- end -}}

{{- define "siteagent.image" -}}
{{- $image := .Values.images.agent -}}
{{- $repository := $image.repository -}}
{{- $host := splitList "/" $repository | first -}}
{{- if and .Values.images.registry (not (and (contains "/" $repository) (or (contains "." $host) (contains ":" $host) (eq $host "localhost")))) -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .Values.images.registry) $repository -}}
{{- end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository ($image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
