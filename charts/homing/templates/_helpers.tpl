{{- define "homing.fullname" -}}
{{- $name := printf "%s-%s" (.Release.Name | trunc 33 | trimSuffix "-") .Chart.Name -}}
{{- if .Values.fullnameOverride -}}
{{- $name = .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- $name = .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$" $name) -}}
{{- fail (printf "%s cannot be the name of a Service (lower-case letters, digits and -, beginning with a letter): set fullnameOverride" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "homing.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "homing.labels" -}}
{{ include "homing.selector" . }}
app.kubernetes.io/version: {{ regexReplaceAll "@.*$" (.Values.image.tag | default .Chart.AppVersion) "" | trunc 63 | trimAll "-_." | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "homing.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "homing.fullname" .) -}}
{{- end -}}

{{- define "homing.tlsSecret" -}}
{{- if eq .Values.tls.mode "Secret" -}}
{{- required "tls.mode is Secret: set tls.secretName to a Secret with tls.crt and tls.key" .Values.tls.secretName -}}
{{- else if eq .Values.tls.mode "CertManager" -}}
{{- printf "%s-tls" (include "homing.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* Every port that a pool may have, in order. */}}
{{- define "homing.poolPorts" -}}
{{- $first := int .Values.service.portRange.first -}}
{{- $last := int .Values.service.portRange.last -}}
{{- if gt $first $last -}}
{{- fail (printf "service.portRange: first %d is above last %d" $first $last) -}}
{{- end -}}
{{- if ge (sub $last $first) 200 -}}
{{- fail (printf "service.portRange: %d..%d are more than the 200 ports a Service should list" $first $last) -}}
{{- end -}}
{{- $ports := list (int .Values.service.port) -}}
{{- range $port := untilStep $first (int (add $last 1)) 1 -}}
{{- $ports = append $ports $port -}}
{{- end -}}
{{- range $port := $ports | uniq -}}
{{- if has $port (list 9003 9004 9090) -}}
{{- fail (printf "service: port %d is Homing's own, for health (9003), peers (9004) or metrics (9090); choose others for pools" $port) -}}
{{- end -}}
{{- end -}}
{{- $ports | uniq | toJson -}}
{{- end -}}
