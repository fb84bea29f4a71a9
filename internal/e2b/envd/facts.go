package envd

import (
	"math"
	"net/http"
)

// health answers only for sandboxes that run; the router answers for others.
func (s *Service) health(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNoContent)
}

// usage is the answer of /metrics. Sizes are bytes unless their name says MiB.
type usage struct {
	Time        int64   `json:"ts"` // seconds since 1970
	CPUCount    int     `json:"cpu_count"`
	CPUUsed     float64 `json:"cpu_used_pct"` // of all CPUs together
	MemTotalMiB int64   `json:"mem_total_mib"`
	MemUsedMiB  int64   `json:"mem_used_mib"`
	MemTotal    int64   `json:"mem_total"`
	MemUsed     int64   `json:"mem_used"`
	MemCache    int64   `json:"mem_cache"`
	DiskUsed    int64   `json:"disk_used"`
	DiskTotal   int64   `json:"disk_total"`
}

func (s *Service) metrics(w http.ResponseWriter, r *http.Request) {
	m, err := s.host.Metrics(r.Context(), callOf(r.Context()).id())
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, http.StatusOK, usage{
		Time: m.Time.Unix(), CPUCount: m.VCPUs, CPUUsed: math.Round(m.CPU/float64(max(m.VCPUs, 1))*100) / 100,
		MemTotalMiB: m.MemTotal >> 20, MemUsedMiB: m.MemUsed >> 20,
		MemTotal: m.MemTotal, MemUsed: m.MemUsed, MemCache: m.MemCache,
		DiskUsed: m.DiskUsed, DiskTotal: m.DiskTotal,
	})
}

func (s *Service) envs(w http.ResponseWriter, r *http.Request) {
	env, err := s.host.Environment(callOf(r.Context()).id())
	if err != nil {
		fail(w, err)
		return
	}
	if env == nil {
		env = map[string]string{}
	}
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, http.StatusOK, env)
}
