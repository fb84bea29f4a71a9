package server

import (
	"net/http"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/forkd-dev/forkd/internal/sandbox"
)

// metrics are the daemon's own; they live in a registry of their own so that
// two servers in one process do not meet.
type metrics struct {
	handler http.Handler
	fork    prometheus.Histogram
	exec    prometheus.Histogram
	eval    prometheus.Histogram
	run     prometheus.Histogram
	branch  *prometheus.HistogramVec // by mode
	pause   *prometheus.HistogramVec // by mode

	pausing, resuming prometheus.Histogram
}

func newMetrics(cfg Config) *metrics {
	reg := prometheus.NewRegistry()
	m := &metrics{
		handler: promhttp.HandlerFor(reg, promhttp.HandlerOpts{}),
		fork:    latency("forkd_fork_duration_seconds", "Time to fork all children of one request."),
		exec:    latency("forkd_exec_duration_seconds", "Time to run a command to its end."),
		eval:    latency("forkd_eval_duration_seconds", "Time to evaluate code in a warm runtime."),
		run:     latency("forkd_run_duration_seconds", "Time to run code in a context."),
		branch:  byMode("forkd_branch_duration_seconds", "Time to answer a request to branch a sandbox."),
		pause:   byMode("forkd_branch_pause_seconds", "Time that the source's user processes stood still for a branch."),

		pausing:  latency("forkd_pause_duration_seconds", "Time to pause a sandbox."),
		resuming: latency("forkd_resume_duration_seconds", "Time to resume a paused sandbox."),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "forkd_build_info",
		Help: "Constant 1, labelled with the build.",
		ConstLabels: prometheus.Labels{
			"version": cfg.Version, "engine": cfg.Engine, "goversion": runtime.Version(),
		},
	})
	build.Set(1)
	reg.MustRegister(m.fork, m.exec, m.eval, m.run, m.branch, m.pause, m.pausing, m.resuming, build,
		gauge("forkd_snapshots_total", "Snapshots that exist.", func() float64 {
			all, err := cfg.Manager.Snapshots()
			if err != nil {
				return -1
			}
			return float64(len(all))
		}),
		inState(cfg.Manager, "forkd_sandboxes_active", "Sandboxes that run.", sandbox.Running),
		inState(cfg.Manager, "forkd_sandboxes_paused", "Sandboxes that are paused.", sandbox.Paused),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// inState counts the sandboxes in a state.
func inState(m Manager, name, help string, state sandbox.State) prometheus.Collector {
	return gauge(name, help, func() float64 {
		n := 0
		for _, box := range m.Sandboxes() {
			if box.State == state {
				n++
			}
		}
		return float64(n)
	})
}

func gauge(name, help string, read func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read)
}

func latency(name, help string) prometheus.Histogram {
	return prometheus.NewHistogram(latencyOpts(name, help))
}

// byMode has a histogram for each mode of a branch.
func byMode(name, help string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(latencyOpts(name, help), []string{"mode"})
}

// latencyOpts are of a histogram from 100 µs to about 100 s.
func latencyOpts(name, help string) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(100e-6, 2, 21)}
}

// GetMetrics serves the metrics in the Prometheus text format.
func (s *Server) GetMetrics(w http.ResponseWriter, r *http.Request) {
	s.metrics.handler.ServeHTTP(w, r)
}
