// Package metrics exports what a store holds and what happened in it to Prometheus. Where the C++ Mooncake Store has a
// metric for the same thing it has the same name, so that its dashboards go on working; what it lacks is called
// mooncake_store_*, with labels for type and tier.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvcache-ai/mooncake-go/store"
)

// Source is what is exported; a *store.Store is one.
type Source interface {
	Counters() store.Counters
	Usage() (store.Usage, error)
}

// Collector reads its source whenever it is scraped and keeps nothing in between. Register it once.
type Collector struct {
	src   Source
	plain []plain
	up    *prometheus.Desc
}

// New makes the collector of one store. labels are constant ones that tell several stores of a process apart; they
// may be nil.
func New(src Source, labels prometheus.Labels) *Collector {
	c := &Collector{src: src, plain: make([]plain, 0, len(metrics))}
	for _, m := range metrics {
		c.plain = append(c.plain, plain{m, prometheus.NewDesc(m.name, m.help, nil, labels)})
	}
	c.up = prometheus.NewDesc("mooncake_store_up", "1 while the store is open, 0 after it was closed.", nil, labels)
	for _, f := range families {
		c.plain = append(c.plain, plain{f.metric, prometheus.NewDesc(f.name, f.help, f.labels, labels)})
	}
	return c
}

// metric is one name. Exactly one of value and each is set.
type metric struct {
	name, help string
	kind       prometheus.ValueType
	value      func(*reading) int64
	each       func(*reading, emit)
}

type family struct {
	metric
	labels []string
}

type plain struct {
	metric
	desc *prometheus.Desc
}

// emit is told each value of a family, with one value for each of its labels.
type emit func(value int64, labels ...string)

type reading struct {
	store.Counters
	store.Usage
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.up
	for _, p := range c.plain {
		ch <- p.desc
	}
}

// Collect implements prometheus.Collector. Of a closed store it says only that.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	u, err := c.src.Usage()
	if err != nil {
		ch <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, 0)
		return
	}
	ch <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, 1)
	r := &reading{c.src.Counters(), u}
	for _, p := range c.plain {
		send := func(v int64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(p.desc, p.kind, float64(v), labels...)
		}
		if p.each != nil {
			p.each(r, send)
		} else {
			send(p.value(r))
		}
	}
}
