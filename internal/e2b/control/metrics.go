package control

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

const (
	maxMetrics   = 100             // sandboxes of one request
	metricsTime  = 5 * time.Second // for all of them
	metricsAhead = 4               // sandboxes that are asked at a time
)

// metric is what a sandbox uses at an instant.
type metric struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUCount      int       `json:"cpuCount"`
	CPUUsedPct    float64   `json:"cpuUsedPct"`
	MemUsed       int64     `json:"memUsed"`
	MemTotal      int64     `json:"memTotal"`
	MemCache      int64     `json:"memCache"`
	DiskUsed      int64     `json:"diskUsed"`
	DiskTotal     int64     `json:"diskTotal"`
}

func metricOf(m *sandbox.Metrics) metric {
	return metric{
		Timestamp: m.Time.UTC(), TimestampUnix: m.Time.Unix(), CPUCount: m.VCPUs, CPUUsedPct: m.CPU,
		MemUsed: m.MemUsed, MemTotal: m.MemTotal, MemCache: m.MemCache, DiskUsed: m.DiskUsed, DiskTotal: m.DiskTotal,
	}
}

// metrics tells what a sandbox uses now. Nobody keeps what it used earlier: asking
// would keep sandboxes that rest from resting. So the list has one entry, or none
// if the sandbox is paused or the time asked for is over.
func (a *API) metrics(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	start, err := unixTime(q, "start", time.Time{})
	if err != nil {
		return err
	}
	end, err := unixTime(q, "end", far)
	if err != nil {
		return err
	}
	info, _, err := a.live(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	list := []metric{}
	if now := time.Now().Truncate(time.Second); info.State == sandbox.Running && !now.Before(start) && !now.After(end) {
		m, err := a.m.Metrics(r.Context(), info.ID)
		if err != nil {
			return err
		}
		list = append(list, metricOf(m))
	}
	answer(w, http.StatusOK, list)
	return nil
}

// unixTime parses a time in seconds since 1970.
func unixTime(q url.Values, field string, def time.Time) (time.Time, error) {
	text := q.Get(field)
	if text == "" {
		return def, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > far.Unix() {
		return def, invalid("%s: must be a time in seconds since 1970, not %q", field, clip(text))
	}
	return time.Unix(n, 0), nil
}

// metricsOfMany tells what several sandboxes use. Those that do not run, or do not
// answer in time, are left out.
func (a *API) metricsOfMany(w http.ResponseWriter, r *http.Request) error {
	var ids []string
	for _, text := range r.URL.Query()["sandbox_ids"] {
		for id := range strings.SplitSeq(text, ",") {
			if id != "" {
				ids = append(ids, id)
			}
		}
	}
	if len(ids) == 0 || len(ids) > maxMetrics {
		return invalid("sandbox_ids: must name 1 to %d sandboxes, not %d", maxMetrics, len(ids))
	}
	ctx, cancel := context.WithTimeout(r.Context(), metricsTime)
	defer cancel()
	found := make(map[string]metric)
	var mu sync.Mutex
	var wg sync.WaitGroup
	places := make(chan struct{}, metricsAhead)
	for _, id := range ids {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			if info, _, err := a.live(ctx, id); err != nil || info.State != sandbox.Running {
				return
			}
			if m, err := a.m.Metrics(ctx, id); err == nil {
				mu.Lock()
				defer mu.Unlock()
				found[id] = metricOf(m)
			}
		})
	}
	wg.Wait()
	answer(w, http.StatusOK, struct {
		Sandboxes map[string]metric `json:"sandboxes"`
	}{found})
	return nil
}
