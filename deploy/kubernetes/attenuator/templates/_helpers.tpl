{{- define "attenuator.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end -}}
{{- end }}

{{- define "attenuator.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "attenuator.labels" -}}
{{ include "attenuator.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "attenuator.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "attenuator.name" .) }}
{{- end }}

{{- /* A setting as text; Helm reads large whole numbers as 1e+06, which is no whole number to the service. */ -}}
{{- define "attenuator.plain" -}}
{{- if and (kindIs "float64" .) (eq (float64 (int64 .)) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end }}

{{- /* The series of this release alone; the labels are the Prometheus operator's. */ -}}
{{- define "attenuator.series" -}}
namespace="{{ .Release.Namespace }}", service="{{ include "attenuator.name" . }}"
{{- end }}
